"""The decoder's queue and thread."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.costs.cost_model import CostModel
from diffuserve.engine.decoding.decode_queue import Decoded
from diffuserve.engine.decoding.decoder import Decoder
from diffuserve.engine.model_runner import ModelRunner
from diffuserve.engine.requests.request_state import DEFAULT_OPTIONS, RequestState, ServingOptions
from diffuserve.engine.stages import Stage, StageRun, T, Task
from diffuserve.testing.fake_pipeline import FAKE_SPEC, FakePipeline
from support.latents import first_latents
from support.waiting import HANG_SECONDS


class InlineExecutor:
    """Runs tasks on the calling thread; `fault` is raised instead, as by a device that failed."""

    def __init__(self, fault: BaseException | None = None) -> None:
        self.fault = fault

    def set_busy(self, stage: Stage, busy: bool) -> None:
        pass

    def num_core_slots(self, stage: Stage) -> int:
        return 1

    def run(
        self,
        stage: Stage,
        tasks: Sequence[Task[T]],
        expected_seconds: float | None = None,
        after: object = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> StageRun[T]:
        if self.fault is not None:
            raise self.fault
        return StageRun([task() for task in tasks], seconds=1.0, share=1.0)

    def mark(self) -> object:
        return None

    def close(self) -> None:
        pass


class WatchedExecutor(InlineExecutor):
    """Runs a task for each permit; `runs` counts those that began, and `rests` tells the stage's state."""

    def __init__(self) -> None:
        super().__init__()
        self.permits, self.runs = threading.Semaphore(0), threading.Semaphore(0)
        self.is_busy = False

    def set_busy(self, stage: Stage, busy: bool) -> None:
        self.is_busy = busy

    def rests(self) -> bool:
        """Return whether the stage has nothing to do."""
        return not self.is_busy

    def run(
        self,
        stage: Stage,
        tasks: Sequence[Task[T]],
        expected_seconds: float | None = None,
        after: object = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> StageRun[T]:
        self.runs.release()
        assert self.permits.acquire(timeout=HANG_SECONDS)
        return super().run(stage, tasks, expected_seconds, after, meanwhile)


class DecoderUnderTest:
    """A decoder over a fake pipeline, and an event that its thread sets."""

    def __init__(self, pipeline: FakePipeline, executor: InlineExecutor) -> None:
        self.pipeline = pipeline
        self.announced = threading.Event()
        cost_model = CostModel.start(pipeline.cost_prior(), None)
        self.decoder = Decoder(ModelRunner(pipeline), executor, cost_model, 2**30, self.announced.set)

    def decode(self, state: RequestState) -> list[Decoded]:
        self.decoder.put(state)
        assert self.announced.wait(HANG_SECONDS), "the decoder's thread says nothing"
        return self.decoder.collect()


def make_state(
    pipeline: FakePipeline, num_frames: int = 1, options: ServingOptions = DEFAULT_OPTIONS
) -> RequestState:
    wanted = GenerationParams(prompt="a", seed=1, num_frames=num_frames)
    params = pipeline.spec.resolve(wanted, seed=1)
    return RequestState(
        request_id="a",
        params=params,
        workload=pipeline.spec.workload(params),
        step_bytes=0,
        schedule=pipeline.schedule(params),
        arrival=0,
        options=options,
        latents=first_latents(pipeline, params),
    )


@pytest.mark.parametrize("fault", [RuntimeError("cannot schedule new futures"), SystemExit(1)])
def test_a_broken_executor_is_raised_to_whoever_collects(fault: BaseException) -> None:
    pipeline = FakePipeline()
    broken = DecoderUnderTest(pipeline, InlineExecutor(fault))
    with pytest.raises(type(fault)):
        broken.decode(make_state(pipeline))
    with pytest.raises(type(fault)):
        broken.decoder.collect()
    broken.decoder.close()


def test_a_requests_own_failure_is_its_outcome() -> None:
    def fail(params: Sequence[GenerationParams]) -> None:
        raise RuntimeError("boom")

    pipeline = FakePipeline(on_decode=fail)
    sound = DecoderUnderTest(pipeline, InlineExecutor())
    (decoded,) = sound.decode(make_state(pipeline))
    assert isinstance(decoded.outcome, RuntimeError)
    assert decoded.state.latents is None
    sound.decoder.close()


@pytest.mark.parametrize("exclusive", [False, True])
def test_only_a_request_that_may_be_decoded_again_keeps_its_latents(exclusive: bool) -> None:
    def fail(params: Sequence[GenerationParams]) -> None:
        raise MemoryError

    pipeline = FakePipeline(on_decode=fail)
    state = make_state(pipeline)
    state.exclusive = exclusive
    short = DecoderUnderTest(pipeline, InlineExecutor())
    (decoded,) = short.decode(state)
    assert isinstance(decoded.outcome, MemoryError)
    assert (state.latents is None) is exclusive
    short.decoder.close()


@pytest.mark.parametrize("next_step", [None, -1, 0])
def test_a_clip_gives_way_to_steps_of_a_higher_priority_and_has_a_turn_in_the_end(
    next_step: int | None,
) -> None:
    pipeline = FakePipeline(spec=replace(FAKE_SPEC, temporal_stride=4, max_frames=81))
    executor = WatchedExecutor()
    watched = DecoderUnderTest(pipeline, executor)
    watched.decoder.put(make_state(pipeline, num_frames=5, options=ServingOptions(priority=-1)))
    assert executor.runs.acquire(timeout=HANG_SECONDS)
    watched.decoder.yield_to(0)
    assert not executor.rests(), "its chunk is being decoded"
    executor.permits.release()
    assert watched.announced.wait(HANG_SECONDS)
    assert executor.rests(), "its next chunk waits"
    if next_step == 0:
        for _ in range(16):
            watched.decoder.yield_to(0)
            assert executor.rests()
    watched.decoder.yield_to(next_step)
    assert executor.runs.acquire(timeout=HANG_SECONDS)
    executor.permits.release()
    watched.decoder.close()
    assert [decoded.is_final for decoded in watched.decoder.collect()] == [False, False, True]
