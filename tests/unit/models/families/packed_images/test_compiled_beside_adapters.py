"""Requests without adapters run compiled blocks beside requests with them."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.loading import load_model, parse_plan
from diffuserve.models.families.packed_images.pipeline import PackedImagePipeline
from diffuserve.models.pipelines.base import packed
from diffuserve.testing.checkpoints import write_flux_checkpoint
from support.adapters import sources_of
from support.images import psnr
from support.lora_pairs import random_pairs


def request(prompt: str, *names: str) -> GenerationParams:
    return GenerationParams(
        prompt=prompt,
        width=64,
        height=64,
        num_inference_steps=2,
        seed=1,
        adapters=tuple(map(AdapterUse, names)),
    )


@pytest.mark.parametrize("is_mixed", [False, True])
def test_blocks_run_compiled_for_those_without_adapters(tmp_path: Path, is_mixed: bool) -> None:
    folder = write_flux_checkpoint(tmp_path / "flux", kind="dev", seed=5)
    pairs = {"transformer": random_pairs(folder, 4, 10)}
    pipeline = packed(load_model(folder, parse_plan("cpu", "float32", None, None)).pipeline)
    assert isinstance(pipeline, PackedImagePipeline)
    wanted = [request("a ring"), request("a star", "a") if is_mixed else request("a star")]
    with Engine(pipeline, EngineConfig(num_threads=1), adapters=sources_of({"a": lambda: pairs})) as engine:
        eager = engine.generate(wanted)
        rows = _stand_in(pipeline)
        mixed = engine.generate(wanted)
    assert min(psnr(new.images[0], old.images[0]) for new, old in zip(mixed, eager, strict=True)) >= 50
    num_compiled = 1 if is_mixed else 2
    assert set(rows) == {num_compiled * 64 * 64 // 16**2}


def _stand_in(pipeline: Any) -> list[int]:
    """Put something in place of compiled halves; return the numbers of rows that it is given."""
    rows = list[int]()

    def stand_in(block: Any) -> Any:
        def run(image: Tensor, *others: Any) -> Any:
            rows.append(len(image))
            block.compiled, kept = None, block.compiled
            try:
                return block(image, *others)
            finally:
                block.compiled = kept

        return run

    for block in pipeline.transformer.transformer_blocks:
        block.compiled = stand_in(block)
    return rows
