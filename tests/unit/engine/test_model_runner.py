"""A request's failure fails that request alone (INV-3)."""

import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.errors import DeviceUnavailable
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.model_runner import ModelRunner, enough_memory
from diffuserve.engine.requests.request_state import RequestState, ServingOptions
from diffuserve.engine.runner import StepResult
from diffuserve.models.machine.isolation import is_out_of_memory, isolate
from diffuserve.testing.fake_pipeline import FakePipeline
from support.latents import first_latents


class CulpritError(Exception):
    """Raised by a batch that holds a culprit."""


def make_params(prompt: str, **values: Any) -> GenerationParams:
    return FakePipeline().spec.resolve(GenerationParams(prompt=prompt, seed=1, **values), seed=1)


def make_state(pipeline: FakePipeline, prompt: str, wants_preview: bool = False) -> RequestState:
    params = make_params(prompt)
    return RequestState(
        request_id=prompt,
        params=params,
        workload=pipeline.spec.workload(params),
        step_bytes=0,
        schedule=pipeline.schedule(params),
        arrival=0,
        options=ServingOptions(preview=wants_preview),
        conditioning=pipeline.encode([params])[0],
    )


def fail_for(*prompts: str) -> Any:
    def check(params: Sequence[GenerationParams]) -> None:
        if culprits := [wanted.prompt for wanted in params if wanted.prompt in prompts]:
            raise CulpritError(*culprits)

    return check


@given(num_items=st.integers(1, 40), culprits=st.sets(st.integers(0, 39)))
def test_exactly_the_culprits_fail_and_every_other_item_gets_its_own_value(
    num_items: int, culprits: set[int]
) -> None:
    def run(batch: Sequence[int]) -> list[int]:
        if found := culprits.intersection(batch):
            raise CulpritError(*found)
        return [item * 10 for item in batch]

    outcomes = isolate(range(num_items), run)
    assert len(outcomes) == num_items
    for item, outcome in enumerate(outcomes):
        if item in culprits:
            assert isinstance(outcome, CulpritError)
            assert outcome.args == (item,), "its own error, not a neighbor's"
        else:
            assert outcome == item * 10


@given(num_items=st.integers(1, 64), most=st.integers(1, 64))
def test_a_batch_that_is_too_large_together_succeeds_in_parts(num_items: int, most: int) -> None:
    def run(batch: Sequence[int]) -> list[int]:
        if len(batch) > most:
            raise MemoryError
        return list(batch)

    assert isolate(range(num_items), run) == list(range(num_items))


def test_a_batch_that_succeeds_runs_once() -> None:
    batches: list[list[int]] = []

    def run(batch: Sequence[int]) -> list[int]:
        batches.append(list(batch))
        return list(batch)

    assert isolate(range(8), run) == list(range(8))
    assert batches == [list(range(8))]


def test_one_culprit_among_many_is_found_by_halving() -> None:
    num_calls = 0

    def run(batch: Sequence[int]) -> list[int]:
        nonlocal num_calls
        num_calls += 1
        if 700 in batch:
            raise CulpritError
        return list(batch)

    isolate(range(1_024), run)
    assert num_calls <= 1 + 2 * 10


def test_an_interrupt_is_no_items_failure() -> None:
    def run(batch: Sequence[int]) -> list[int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        isolate([1, 2], run)


def test_an_empty_batch_is_not_run() -> None:
    def run(batch: Sequence[int]) -> list[int]:
        return [max(batch)]

    assert isolate([], run) == []


def test_a_prompt_that_cannot_be_encoded_fails_alone() -> None:
    pipeline = FakePipeline()
    states = [make_state(pipeline, prompt) for prompt in ("a", "bad", "b")]
    outcomes = ModelRunner(FakePipeline(on_encode=fail_for("bad"))).encode(states)
    assert [isinstance(outcome, CulpritError) for outcome in outcomes] == [False, True, False]


def test_a_request_that_cannot_be_denoised_fails_alone_and_the_rest_move_as_without_it() -> None:
    faulty, sound = FakePipeline(on_denoise=fail_for("bad")), FakePipeline()
    outcomes = ModelRunner(faulty).step([make_state(faulty, prompt) for prompt in ("a", "bad", "b")])
    expected = ModelRunner(sound).step([make_state(sound, prompt) for prompt in ("a", "b")])
    assert isinstance(outcomes[1], CulpritError)
    for outcome, wanted in zip((outcomes[0], outcomes[2]), expected, strict=True):
        assert isinstance(outcome, StepResult)
        assert isinstance(wanted, StepResult)
        assert outcome.latents is not None
        assert wanted.latents is not None
        assert torch.equal(outcome.latents, wanted.latents)


def test_a_step_moves_latents_along_the_requests_own_schedule_and_leaves_the_state_as_it_was() -> None:
    pipeline = FakePipeline()
    state = make_state(pipeline, "a")
    outcome = ModelRunner(pipeline).step([state])[0]
    noise = first_latents(pipeline, state.params)
    assert isinstance(outcome, StepResult)
    assert outcome.latents is not None
    assert state.step == 0
    assert state.latents is not None
    assert torch.equal(state.latents, noise)
    prediction = pipeline.denoise([state.denoise_input()])[0]
    moved, _ = pipeline.solver.step(noise, prediction, state.schedule.at(0), (), None)
    assert torch.equal(outcome.latents, moved)


def test_only_requests_that_want_previews_get_them() -> None:
    pipeline = FakePipeline()
    states = [make_state(pipeline, "a", wants_preview=True), make_state(pipeline, "b")]
    asking, silent = ModelRunner(pipeline).step(states)
    assert isinstance(asking, StepResult)
    assert isinstance(silent, StepResult)
    assert [preview.shape for preview in asking.previews] == [(8, 8, 3)]
    assert silent.previews == ()


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_latents_that_are_not_finite_fail_alone_before_they_are_decoded(poison: float) -> None:
    pipeline = FakePipeline()
    decoded: list[str] = []
    pipeline.on_decode = lambda params: decoded.extend(wanted.prompt for wanted in params)
    states = [make_state(pipeline, prompt) for prompt in ("a", "bad", "b")]
    for state in states:
        state.latents = first_latents(pipeline, state.params)
        if state.request_id == "bad":
            state.latents[0, 0, 0, 3, 3] = poison
    outcomes = ModelRunner(pipeline).decode(states)
    assert [isinstance(outcome, FloatingPointError) for outcome in outcomes] == [False, True, False]
    assert decoded == ["a", "b"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (torch.AcceleratorError("CUDA error: out of memory"), True),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("shapes do not match"), False),
        (ValueError("memory"), False),
    ],
)
def test_running_out_of_memory_is_distinguished_from_other_failures(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_the_cpu_allocators_error_counts_as_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**52)
    assert is_out_of_memory(raised.value)


class Held:
    """Stands for a tensor in a frame."""


def test_a_failure_keeps_nothing_alive_while_its_neighbors_are_retried() -> None:
    held: list[weakref.ref[Held]] = []

    def run(batch: Sequence[int]) -> list[int]:
        assert [found for found in held if found() is not None] == []
        tensor = Held()
        held.append(weakref.ref(tensor))
        try:
            raise KeyError(tensor.__class__.__name__)
        except KeyError as cause:
            if 0 in batch or 1 in batch:
                raise MemoryError from cause
        return list(batch)

    failures = isolate(range(4), run)
    assert [isinstance(failure, MemoryError) for failure in failures] == [True, True, False, False]
    assert len(held) == 1 + 3 + 1, "the batch, its first half down to single items, and its second half"


def test_a_failure_says_where_it_was_raised() -> None:
    def run(batch: Sequence[int]) -> list[int]:
        raise CulpritError

    (failure,) = isolate([1], run)
    assert isinstance(failure, CulpritError)
    assert failure.__traceback__ is None
    assert "test_model_runner.py" in "".join(failure.__notes__)


def test_a_fault_of_the_device_is_no_items_failure() -> None:
    def run(batch: Sequence[int]) -> list[int]:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(torch.AcceleratorError):
        isolate([1, 2], run)


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried …\nmore")]
)
def test_a_device_without_room_for_the_model_is_refused_with_a_remedy(error: Exception) -> None:
    with (
        pytest.raises(DeviceUnavailable, match=r"device='cuda:0': not enough memory for big .*--dtype"),
        enough_memory("big", torch.device("cuda:0")),
    ):
        raise error


def test_other_errors_of_loading_are_not_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="odd"), enough_memory("big", "cpu"):
        raise RuntimeError("odd")
