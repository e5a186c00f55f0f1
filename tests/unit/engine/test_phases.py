"""Requests in any order, with any fault: each makes allowed moves alone, and comes to exactly one end."""

import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.core import EngineCore
from diffuserve.engine.model_runner import ModelRunner
from diffuserve.engine.outputs import StepOutput
from diffuserve.engine.requests.admission import new_state
from diffuserve.engine.requests.phases import MOVES, RequestPhase
from diffuserve.engine.requests.request_progress import RequestProgress
from diffuserve.engine.requests.request_state import RequestState, ServingOptions
from diffuserve.engine.requests.swapping import go_on_from
from diffuserve.testing.fake_pipeline import FakePipeline
from support.latents import first_latents
from support.waiting import HANG_SECONDS

FINE, BROKEN, LARGE_STEP, LARGE_DECODE = "fine", "broken", "large step", "large decode"
"""Prompts of requests that succeed, that fail, and that run out of memory once: in a step, or decoded."""
STEPPING = {RequestPhase.WAITING, RequestPhase.DENOISING, RequestPhase.SWAPPED}


class RequestMachine(RuleBasedStateMachine):
    """Steps a core by hand, with a decoder that works whenever it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.decoded = threading.Event()
        self.pipeline = FakePipeline(
            on_denoise=self.failing(LARGE_STEP, BROKEN), on_decode=self.failing(LARGE_DECODE)
        )
        config = EngineConfig(num_threads=1, token_budget=200)
        self.core = EngineCore(ModelRunner(self.pipeline), config, self.decoded.set)
        self.states: list[RequestState] = []
        self.arriving: list[RequestState] = []
        self.too_large: set[int | None] = set()
        self.aborted: set[str] = set()
        self.ends: dict[str, StepOutput] = {}

    def failing(self, large: str, broken: str = "") -> Callable[[Sequence[GenerationParams]], None]:
        def fail(batch: Sequence[GenerationParams]) -> None:
            if any(params.prompt == broken for params in batch):
                raise ValueError("boom")
            found = {params.seed for params in batch if params.prompt == large} - self.too_large
            if found:
                self.too_large |= found if len(batch) == 1 else set()
                raise MemoryError

        return fail

    @rule(
        prompt=st.sampled_from([FINE, BROKEN, LARGE_STEP, LARGE_DECODE]),
        num_images=st.sampled_from([1, 5]),
        num_frames=st.sampled_from([1, 3]),
        options=st.builds(ServingOptions, priority=st.integers(-1, 1), until_denoised=st.booleans()),
        comes=st.sampled_from(["new", "begun", "denoised"]),
    )
    def arrive(
        self, prompt: str, num_images: int, num_frames: int, options: ServingOptions, comes: str
    ) -> None:
        wanted = GenerationParams(
            prompt=prompt, num_images=num_images, num_frames=num_frames, num_inference_steps=2
        )
        params = self.pipeline.spec.resolve(wanted, seed=len(self.states))
        latents = first_latents(self.pipeline, params)
        state = new_state(self.pipeline, params, options, latents if comes == "denoised" else None)
        if comes == "begun":
            go_on_from(state, RequestProgress(step=1, latents=latents), self.pipeline.device)
        self.states.append(state)
        self.arriving.append(state)

    @rule()
    def step(self) -> None:
        self._step([])

    @rule(number=st.integers(0, 9))
    def abort(self, number: int) -> None:
        ids = [state.request_id for state in self.core.requests]
        self.aborted |= set(ids[number : number + 1])
        self._step(ids[number : number + 1])

    @rule(number=st.integers(0, 9))
    def swap_out(self, number: int) -> None:
        begun = [state for state in self.core.requests.stepping.values() if state.latents is not None]
        for state in begun[number : number + 1]:
            self.core._swap_out(state)

    @invariant()
    def every_request_is_where_its_phase_says(self) -> None:
        requests = self.core.requests
        assert {state.phase for state in requests.stepping.values()} <= STEPPING
        assert {state.phase for state in requests.decoding.values()} <= {RequestPhase.DECODING}
        assert {state.phase for state in requests.retry.values()} <= {RequestPhase.RETRY}
        known = [*(state.request_id for state in requests), *self.ends]
        assert sorted(known) == sorted(
            state.request_id for state in self.states if state not in self.arriving
        )

    @invariant()
    def what_gave_back_its_memory_has_what_it_goes_on_from(self) -> None:
        for state in self.core.requests:
            assert (state.saved is not None) == (state.phase is RequestPhase.SWAPPED)

    def teardown(self) -> None:
        while len(self.ends) < len(self.states):
            self.decoded.clear()
            self._step([])
            if self.core.seconds_to_wait is None and self.core.decoder.outstanding:  # as the step loop waits
                assert self.decoded.wait(HANG_SECONDS), "the decoder's thread says nothing"
        self.core.close()
        for state in self.states:
            may_fail = state.params.prompt == BROKEN or state.request_id in self.aborted
            assert may_fail or self.ends[state.request_id].result is not None

    def _step(self, aborted: Sequence[str]) -> None:
        arrived, self.arriving = self.arriving, []
        for output in self.core.step(arrived, aborted):
            assert output.request_id not in self.ends, "nothing comes after a request's end"
            if output.finished:
                self.ends[output.request_id] = output


def test_every_request_makes_allowed_moves_alone_and_has_one_end() -> None:
    run_state_machine_as_test(RequestMachine, settings=settings(stateful_step_count=30))


@pytest.mark.parametrize("phase", RequestPhase)
def test_every_phase_can_be_reached_and_left_for_the_end_alone_after_which_nothing_follows(
    phase: RequestPhase,
) -> None:
    reached = {RequestPhase.WAITING}
    while following := set().union(*(MOVES[each] for each in reached)) - reached:
        reached |= following
    assert phase in reached
    assert (RequestPhase.ENDED in MOVES[phase]) == (phase is not RequestPhase.ENDED)
