"""Memory stays flat over successes, failures and aborts."""

import gc
import random
from collections.abc import Sequence

import psutil
import pytest
import torch

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.models.pipelines.base import DenoiseInput, PackedPipeline, packed

MEBIBYTE = 2**20


class SometimesFaulty:
    """A real pipeline that raises for the prompt "raise" and predicts NaN for the prompt "nan"."""

    def __init__(self, pipeline: PackedPipeline) -> None:
        self._pipeline = pipeline

    def __getattr__(self, name: str) -> object:
        return getattr(self._pipeline, name)

    def denoise(self, batch: Sequence[DenoiseInput]) -> list[torch.Tensor]:
        if any(request.params.prompt == "raise" for request in batch):
            raise RuntimeError("boom")
        predictions = self._pipeline.denoise(batch)
        return [
            prediction * float("nan") if request.params.prompt == "nan" else prediction
            for request, prediction in zip(batch, predictions, strict=True)
        ]


def run_requests(engine: Engine, draw: random.Random, count: int) -> None:
    """Run requests in waves of 20, of which some fail and some are aborted while they run."""
    for _ in range(count // 20):
        ids = [
            engine.add(
                GenerationParams(
                    prompt=draw.choice(["raise", "nan", *(f"star {draw.random()}" for _ in range(8))]),
                    width=draw.choice([32, 48]),
                    height=32,
                    num_inference_steps=draw.randint(1, 2),
                ),
                preview=draw.random() < 0.1,
            )
            for _ in range(20)
        ]
        engine.step()
        for request_id in draw.sample(ids, k=3):
            engine.abort(request_id)
        while engine.step():
            pass


def resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def count_tensors() -> int:
    return sum(type(found) is torch.Tensor for found in gc.get_objects())


@pytest.mark.slow
def test_memory_is_flat_over_two_thousand_requests_with_aborts_and_failures(tiny_engine: Engine) -> None:
    faulty: PackedPipeline = SometimesFaulty(packed(tiny_engine.pipeline))  # type: ignore[assignment]
    draw = random.Random(0)
    with Engine(faulty, EngineConfig(prompt_cache_bytes=4 * MEBIBYTE, num_threads=1)) as engine:
        run_requests(engine, draw, 1000)  # allocators and oneDNN's cache of kernels reach their size
        before, tensors_before = resident_bytes(), count_tensors()
        run_requests(engine, draw, 2000)
        grown = resident_bytes() - before
        assert count_tensors() <= tensors_before
        assert engine.num_unfinished == 0
        assert not engine._core.requests.stepping
    assert grown < 32 * MEBIBYTE, f"grew by {grown / MEBIBYTE:.1f} MiB"
