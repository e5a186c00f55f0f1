"""A request's failure fails that request alone (INV-3)."""

import gc
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from diffuserve.domain.errors import (
    DiffuserveError,
    EngineClosed,
    NumericalFailure,
    OutOfMemory,
    RequestFailed,
)
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine import core
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.engine.stages import CpuStageExecutor, Stage, StageRun, T, Task
from diffuserve.models.pipelines.base import DenoiseInput, PackedPipeline, packed
from diffuserve.testing.fake_pipeline import FakePipeline
from support.images import psnr

CULPRIT = "the culprit"


def make_batch(culprits: Sequence[int] = (3,), size: int = 8) -> list[GenerationParams]:
    return [
        GenerationParams(
            prompt=CULPRIT if i in culprits else f"image {i}",
            width=64 + 16 * (i % 2),
            height=64,
            num_inference_steps=2 + i % 3,
            seed=i,
        )
        for i in range(size)
    ]


def raise_for_culprit(error: Exception) -> "type[None] | object":
    def fault(params: Sequence[GenerationParams]) -> None:
        if any(wanted.prompt == CULPRIT for wanted in params):
            raise error

    return fault


def assert_only_the_culprit_fails(pipeline: PackedPipeline, kind: type[DiffuserveError]) -> None:
    batch = make_batch()
    with Engine(pipeline, EngineConfig(token_budget=100_000)) as engine:
        outcomes = engine.generate(batch, return_exceptions=True)
    with Engine(FakePipeline()) as healthy:
        expected = healthy.generate([params for params in batch if params.prompt != CULPRIT])
    assert type(outcomes.pop(3)) is kind
    for outcome, alone in zip(outcomes, expected, strict=True):
        assert isinstance(outcome, GenerationResult)
        assert psnr(outcome.images[0], alone.images[0]) >= 50


@pytest.mark.parametrize("phase", ["on_encode", "on_denoise", "on_decode"])
def test_an_exception_in_any_phase_fails_its_request_alone(phase: str, fake: FakePipeline) -> None:
    setattr(fake, phase, raise_for_culprit(RuntimeError("boom")))
    assert_only_the_culprit_fails(fake, RequestFailed)


@pytest.mark.parametrize("phase", ["on_denoise", "on_decode"])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_running_out_of_memory_fails_its_request_alone(
    phase: str, error: Exception, fake: FakePipeline
) -> None:
    setattr(fake, phase, raise_for_culprit(error))
    assert_only_the_culprit_fails(fake, OutOfMemory)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_latents_that_are_not_finite_fail_their_request_alone(value: float, fake: FakePipeline) -> None:
    def poison(params: GenerationParams, prediction: Tensor) -> Tensor:
        return torch.full_like(prediction, value) if params.prompt == CULPRIT else prediction

    fake.poison = poison
    assert_only_the_culprit_fails(fake, NumericalFailure)


@pytest.mark.parametrize("phase", ["on_denoise", "on_decode"])
def test_a_batch_too_large_for_the_memory_is_halved_until_it_fits(phase: str, fake: FakePipeline) -> None:
    def fault(params: Sequence[GenerationParams]) -> None:
        if len(params) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    setattr(fake, phase, fault)
    with Engine(fake, EngineConfig(token_budget=100_000, num_threads=1)) as engine:
        results = engine.generate(make_batch(culprits=()))
    assert len(results) == 8


def test_a_lone_request_that_fails_is_returned_if_asked_for(fake: FakePipeline, fake_engine: Engine) -> None:
    fake.on_denoise = raise_for_culprit(RuntimeError("boom"))  # type: ignore[assignment]
    assert isinstance(fake_engine.generate(CULPRIT, return_exceptions=True), RequestFailed)
    with pytest.raises(RequestFailed, match="boom"):
        fake_engine.generate(CULPRIT)


def test_generate_raises_the_failure_after_the_others_are_done(
    fake: FakePipeline, fake_engine: Engine
) -> None:
    fake.on_denoise = raise_for_culprit(RuntimeError("boom"))  # type: ignore[assignment]
    with pytest.raises(RequestFailed, match="boom"):
        fake_engine.generate(make_batch())
    assert not fake_engine.num_unfinished


def test_the_engine_continues_after_every_request_of_a_batch_failed(
    fake: FakePipeline, fake_engine: Engine
) -> None:
    fake.on_denoise = raise_for_culprit(RuntimeError("boom"))  # type: ignore[assignment]
    outcomes = fake_engine.generate(make_batch(culprits=range(8)), return_exceptions=True)
    assert all(isinstance(outcome, RequestFailed) for outcome in outcomes)
    assert len(fake_engine.generate(make_batch(culprits=()))) == 8


class FaultyPipeline:
    """A real pipeline whose prediction for the culprit's prompt is broken."""

    def __init__(self, pipeline: PackedPipeline, fault: str) -> None:
        self._pipeline = pipeline
        self._fault = fault

    def __getattr__(self, name: str) -> object:
        return getattr(self._pipeline, name)

    def denoise(self, batch: Sequence[DenoiseInput]) -> list[Tensor]:
        guilty = [request.params.prompt == CULPRIT for request in batch]
        if self._fault == "raise" and any(guilty):
            raise RuntimeError("boom")
        predictions = self._pipeline.denoise(batch)
        return [
            torch.full_like(prediction, float("nan")) if is_guilty else prediction
            for prediction, is_guilty in zip(predictions, guilty, strict=True)
        ]


@pytest.mark.parametrize(("fault", "kind"), [("raise", RequestFailed), ("nan", NumericalFailure)])
@pytest.mark.parametrize("family", ["flux", "stable diffusion"])
def test_images_do_not_change_when_a_neighbor_fails(
    family: str, fault: str, kind: type[DiffuserveError], tiny_engine: Engine, small_unet: PackedPipeline
) -> None:
    healthy = tiny_engine.pipeline if family == "flux" else small_unet
    batch = make_batch()
    faulty: PackedPipeline = FaultyPipeline(packed(healthy), fault)  # type: ignore[assignment]
    with Engine(faulty) as engine:
        outcomes = engine.generate(batch, return_exceptions=True)
    with Engine(healthy) as engine:
        expected = engine.generate([params for params in batch if params.prompt != CULPRIT])
    assert type(outcomes.pop(3)) is kind
    for outcome, alone in zip(outcomes, expected, strict=True):
        assert isinstance(outcome, GenerationResult)
        assert psnr(outcome.images[0], alone.images[0]) >= 50


class BrokenLane(CpuStageExecutor):
    """Stages whose device fails under the decodes."""

    def run(
        self,
        stage: Stage,
        tasks: Sequence[Task[T]],
        expected_seconds: float | None = None,
        after: object = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> StageRun[T]:
        run = super().run(stage, tasks, expected_seconds, after, meanwhile)
        if stage is Stage.DECODE:
            raise RuntimeError("the device failed")
        return run


@pytest.fixture
def breaking_engine(fake: FakePipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(core, "make_stage_executor", lambda *_: BrokenLane(2, allow_intra_op=False))
    with Engine(fake) as engine:
        yield engine


def test_an_error_of_the_decode_lane_is_raised_by_the_step(breaking_engine: Engine) -> None:
    for _ in range(2):  # it stays broken
        with pytest.raises(RuntimeError, match="the device failed"):
            breaking_engine.generate(make_batch(culprits=()))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_error_of_the_decode_lane_ends_the_driver(breaking_engine: Engine) -> None:
    with pytest.raises(EngineClosed, match="the device failed"):
        await breaking_engine.submit(make_batch(culprits=())[0])
    assert breaking_engine._loop._driver is not None
    breaking_engine._loop._driver.join()  # its own error is not a later test's


@pytest.mark.parametrize("phase", ["on_encode", "on_denoise", "on_decode"])
def test_a_fault_of_the_device_ends_the_engine(phase: str, fake: FakePipeline, fake_engine: Engine) -> None:
    fault = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    setattr(fake, phase, raise_for_culprit(fault))
    with pytest.raises(torch.AcceleratorError):
        fake_engine.generate(make_batch())


def test_a_failure_is_logged_with_its_place_and_without_the_prompt(
    fake: FakePipeline, fake_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    fake.on_decode = raise_for_culprit(RuntimeError(f"cannot decode {CULPRIT}"))  # type: ignore[assignment]
    fake_engine.generate(make_batch(), return_exceptions=True)
    (record,) = caplog.records
    assert "RuntimeError" in record.getMessage()
    assert "in decode" in record.getMessage()
    assert CULPRIT not in record.getMessage()


def test_a_failure_keeps_no_tensors_alive(fake: FakePipeline, fake_engine: Engine) -> None:
    others = latents_alive()  # what earlier tests in this process have left
    fake.on_denoise = raise_for_culprit(RuntimeError("boom"))  # type: ignore[assignment]
    outcomes = fake_engine.generate(make_batch(), return_exceptions=True)
    known = {id(tensor) for tensor in others}
    assert [tensor for tensor in latents_alive() if id(tensor) not in known] == []
    assert len(outcomes) == 8


def latents_alive() -> list[Tensor]:
    """Return the tensors of five axes, as the fake pipeline's latents have."""
    gc.collect()
    return [found for found in gc.get_objects() if type(found) is Tensor and found.dim() == 5]
