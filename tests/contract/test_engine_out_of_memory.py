"""A request that runs out of memory beside others has the device to itself once; only then it fails."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from diffuserve.domain.errors import OutOfMemory
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.models.frames import Frames, Sound
from diffuserve.models.pipelines.base import DenoiseInput
from diffuserve.testing.fake_pipeline import FakePipeline
from support.waiting import HANG_SECONDS

BIG = "big"


class SmallDevice(FakePipeline):
    """A device that holds the big request or any number of others; `refused` counts where it ran out.

    The first decode of another request lasts until the big one was refused, so that they meet.
    """

    def __init__(self, big_stage: str) -> None:
        super().__init__()
        self._big_stage = big_stage
        self._guard = threading.Lock()
        self._running = 0
        self._was_refused = threading.Event()
        self.refused = 0

    def denoise(self, batch: Sequence[DenoiseInput]) -> list[Tensor]:
        with self._use("denoise", [request.params for request in batch]):
            return super().denoise(batch)

    def decode(
        self, latents: Sequence[Tensor], params: Sequence[GenerationParams]
    ) -> Sequence[Sequence[Frames | Sound]]:
        with self._use("decode", params):
            if self._big_stage == "denoise":
                assert self._was_refused.wait(HANG_SECONDS)
            return super().decode(latents, params)

    @contextmanager
    def _use(self, stage: str, params: Sequence[GenerationParams]) -> Iterator[None]:
        with self._guard:
            self._running += 1
        try:
            if stage == self._big_stage and any(wanted.prompt == BIG for wanted in params):
                self._hold_big(params)
            yield
        finally:
            with self._guard:
                self._running -= 1

    def _hold_big(self, params: Sequence[GenerationParams]) -> None:
        time.sleep(0.01)  # whatever would run beside it has begun by now
        if self._running > 1 or len(params) > 1 or not self.refused:
            self.refused += 1
            if len(params) == 1:
                self._was_refused.set()
            raise torch.OutOfMemoryError("CUDA out of memory")


def make_batch() -> list[GenerationParams]:
    small = [
        GenerationParams(
            prompt=f"image {i}", width=64, height=64, num_inference_steps=1 + 3 * (i % 3), seed=i
        )
        for i in range(6)
    ]
    return [*small, GenerationParams(prompt=BIG, width=64, height=64, num_inference_steps=3, seed=9)]


@pytest.mark.parametrize("stage", ["denoise", "decode"])
def test_a_request_that_does_not_fit_beside_others_succeeds_by_itself(stage: str) -> None:
    device = SmallDevice(stage)
    with Engine(device, EngineConfig(token_budget=100_000, num_threads=2)) as engine:
        results = engine.generate(make_batch())
    with Engine(FakePipeline()) as roomy:
        expected = roomy.generate(make_batch())
    assert device.refused
    for result, alone in zip(results, expected, strict=True):
        assert result.images[0].tobytes() == alone.images[0].tobytes()


def test_a_prompt_that_does_not_fit_beside_others_is_encoded_by_itself(fake: FakePipeline) -> None:
    batches: list[list[str]] = []

    def refuse_company(params: Sequence[GenerationParams]) -> None:
        batches.append([wanted.prompt for wanted in params])
        if BIG in batches[-1] and ([BIG] not in batches[:-1] or len(params) > 1):
            raise MemoryError

    fake.on_encode = refuse_company
    with Engine(fake, EngineConfig(token_budget=100_000, num_threads=1)) as engine:
        results = engine.generate(make_batch())
    assert len(results) == 7
    assert batches.count([BIG]) == 2, "once by halving, and once with the device to itself"


@pytest.mark.parametrize("phase", ["on_encode", "on_denoise", "on_decode"])
def test_a_request_that_does_not_fit_by_itself_fails_after_one_retry(phase: str, fake: FakePipeline) -> None:
    tries: list[int] = []

    def refuse(params: Sequence[GenerationParams]) -> None:
        if any(wanted.prompt == BIG for wanted in params):
            tries.append(len(params))
            raise torch.OutOfMemoryError("CUDA out of memory")

    setattr(fake, phase, refuse)
    with Engine(fake, EngineConfig(token_budget=100_000, num_threads=1)) as engine:
        outcomes = engine.generate(make_batch(), return_exceptions=True)
    assert isinstance(outcomes.pop(), OutOfMemory)
    assert all(isinstance(outcome, GenerationResult) for outcome in outcomes)
    assert tries.count(1) == 2


@pytest.mark.parametrize("phase", ["on_denoise", "on_decode"])
def test_a_request_that_is_to_be_tried_again_can_be_aborted(phase: str, fake: FakePipeline) -> None:
    def refuse(params: Sequence[GenerationParams]) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    setattr(fake, phase, refuse)
    with Engine(fake, EngineConfig(num_threads=1)) as engine:
        request_id = engine.add(GenerationParams(prompt="a", num_inference_steps=1, seed=1))
        while engine.step()[0].step != (1 if phase == "on_decode" else 0):
            pass
        assert engine.abort(request_id)
        (output,) = [output for output in engine.step() if output.finished]
        assert output.request_id == request_id
        assert engine.step() == []
        assert engine.num_unfinished == 0


def test_no_step_is_taken_while_a_request_is_decoded_by_itself() -> None:
    device = FakePipeline()
    steps_meanwhile: list[int] = []

    def watch(params: Sequence[GenerationParams]) -> None:
        if all(wanted.prompt != BIG for wanted in params):
            return
        if not steps_meanwhile:
            steps_meanwhile.append(0)
            raise MemoryError
        before = len(device.denoised_batches)
        time.sleep(0.05)
        steps_meanwhile.append(len(device.denoised_batches) - before)

    device.on_decode = watch
    longer = GenerationParams(prompt="long", width=64, height=64, num_inference_steps=40, seed=1)
    big = GenerationParams(prompt=BIG, width=64, height=64, num_inference_steps=1, seed=2)
    with Engine(device, EngineConfig(token_budget=100_000, num_threads=2)) as engine:
        engine.generate([longer, big])
    assert steps_meanwhile == [0, 0]
