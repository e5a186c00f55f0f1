"""The pure choice of the requests that take the next step."""

from dataclasses import replace
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.engine.policy.scheduler import Candidate, StepLimits, StepScheduler
from diffuserve.engine.policy.step_order import StepOrder

SCHEDULER = StepScheduler(ageing_steps=16, order=StepOrder.ARRIVAL)
ROOMY = StepLimits(tokens=10**9, step_bytes=10**12)

STATIC = replace(SCHEDULER, same_steps_only=True, max_wait_seconds=0.5)

NEVER = st.just(False)
LIMITS = st.builds(StepLimits, tokens=st.integers(1, 5_000), step_bytes=st.integers(1, 5_000))


@st.composite
def backlogs(draw: st.DrawFn, is_alone: st.SearchStrategy[bool] = NEVER) -> list[Candidate]:
    """Draw requests that wait, each with an arrival of its own, as the engine numbers them."""
    arrivals = draw(st.lists(st.integers(0, 1_000), unique=True, max_size=12))
    return [
        Candidate(
            request_id=f"request-{arrival}",
            priority=draw(st.integers(-3, 3)),
            arrival=arrival,
            skipped=draw(st.integers(0, 100)),
            tokens=draw(st.integers(1, 2_000)),
            step_bytes=draw(st.integers(1, 2_000)),
            is_alone=draw(is_alone),
            num_steps=draw(st.sampled_from([4, 8])),
            step=draw(st.integers(0, 3)),
        )
        for arrival in arrivals
    ]


def make_candidate(
    request_id: str, arrival: int, priority: int = 0, tokens: int = 100, skipped: int = 0
) -> Candidate:
    return Candidate(request_id, priority, arrival, skipped, tokens, step_bytes=1)


def chosen_of(backlog: list[Candidate], limits: StepLimits) -> list[Candidate]:
    by_id = {candidate.request_id: candidate for candidate in backlog}
    return [by_id[request_id] for request_id in SCHEDULER.select(backlog, limits)]


@given(backlogs(), LIMITS)
def test_at_least_one_request_goes_and_none_goes_twice(backlog: list[Candidate], limits: StepLimits) -> None:
    chosen = SCHEDULER.select(backlog, limits)
    assert bool(chosen) == bool(backlog)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= {candidate.request_id for candidate in backlog}


@given(backlogs(), LIMITS)
def test_both_budgets_hold_unless_one_request_alone_exceeds_them(
    backlog: list[Candidate], limits: StepLimits
) -> None:
    chosen = chosen_of(backlog, limits)
    if len(chosen) > 1:
        assert sum(candidate.tokens for candidate in chosen) <= limits.tokens
        assert sum(candidate.step_bytes for candidate in chosen) <= limits.step_bytes


@given(backlogs(), LIMITS)
def test_every_request_that_still_fits_goes_too(backlog: list[Candidate], limits: StepLimits) -> None:
    alike = [replace(candidate, priority=0) for candidate in backlog]
    chosen = chosen_of(alike, limits)
    left = [candidate for candidate in alike if candidate not in chosen]
    tokens = sum(candidate.tokens for candidate in chosen)
    step_bytes = sum(candidate.step_bytes for candidate in chosen)
    assert all(
        tokens + candidate.tokens > limits.tokens or step_bytes + candidate.step_bytes > limits.step_bytes
        for candidate in left
    )


@given(backlogs(), LIMITS)
def test_those_of_lower_priority_add_a_fourth_at_most(backlog: list[Candidate], limits: StepLimits) -> None:
    young = [replace(candidate, skipped=0) for candidate in backlog]
    chosen = chosen_of(young, limits)
    if chosen:
        of_first = sum(each.tokens for each in chosen if each.priority == chosen[0].priority)
        assert 4 * (sum(each.tokens for each in chosen) - of_first) <= of_first


def test_a_request_that_aged_shares_the_step_of_a_higher_priority_and_keeps_none_out() -> None:
    urgent = make_candidate("urgent", arrival=9, priority=0)
    clips = [make_candidate(f"clip-{index}", index, priority=-2, tokens=180) for index in range(3)]
    assert SCHEDULER.select([*clips, urgent], ROOMY) == ["urgent"]
    aged = [replace(clip, skipped=32) for clip in clips]
    assert SCHEDULER.select([*aged, urgent], ROOMY) == ["clip-0", "clip-1", "clip-2", "urgent"]
    leading = [replace(clip, skipped=48) for clip in clips]
    assert SCHEDULER.select([*leading, urgent], ROOMY) == ["clip-0", "clip-1", "clip-2", "urgent"]


@given(backlogs(), LIMITS, st.randoms(use_true_random=False))
def test_the_choice_depends_on_values_alone_and_not_on_their_order(
    backlog: list[Candidate], limits: StepLimits, random: Random
) -> None:
    shuffled = random.sample(backlog, len(backlog))
    assert SCHEDULER.select(shuffled, limits) == SCHEDULER.select(backlog, limits)
    assert SCHEDULER.select(iter(backlog), limits) == SCHEDULER.select(backlog, limits)


def in_order(backlog: list[Candidate], limits: StepLimits) -> list[str]:
    """Return all ids by priority and age, then by how far they exceed a step by themselves, then arrival."""
    by_precedence = sorted(
        backlog,
        key=lambda each: (
            -(each.priority + each.skipped // 16),
            max(each.tokens, limits.tokens),
            each.arrival,
        ),
    )
    return [candidate.request_id for candidate in by_precedence]


@given(backlogs(), LIMITS)
def test_the_first_in_order_goes_whatever_its_size(backlog: list[Candidate], limits: StepLimits) -> None:
    assert SCHEDULER.select(backlog, limits)[:1] == in_order(backlog, limits)[:1]


@given(backlogs(), LIMITS)
def test_the_chosen_come_in_order_of_precedence(backlog: list[Candidate], limits: StepLimits) -> None:
    order, chosen = in_order(backlog, limits), SCHEDULER.select(backlog, limits)
    assert chosen == [request_id for request_id in order if request_id in chosen]


def test_what_exceeds_a_step_goes_alone() -> None:
    backlog = [make_candidate("huge", 1, tokens=5_000), make_candidate("other", 2, tokens=5_000)]
    assert SCHEDULER.select(backlog, StepLimits(1_000, 1_000)) == ["huge"]


@pytest.mark.parametrize(("skipped", "first"), [(0, "small"), (15, "small"), (16, "huge")])
def test_what_exceeds_a_step_lets_small_requests_go_first_until_it_has_aged(skipped: int, first: str) -> None:
    backlog = [make_candidate("huge", 1, tokens=5_000, skipped=skipped), make_candidate("small", 2)]
    assert SCHEDULER.select(backlog, StepLimits(1_000, 1_000)) == [first]


def test_of_those_that_exceed_a_step_the_one_with_fewer_turns_goes_first() -> None:
    many = replace(make_candidate("many", 1, tokens=900), step_tokens=16 * 900, turns_left=16)
    few = replace(make_candidate("few", 2, tokens=900), step_tokens=2 * 900, turns_left=2)
    assert SCHEDULER.select([many, few], StepLimits(1_000, 1_000)) == ["few"]


@pytest.mark.parametrize(("step_tokens", "left"), [(900, 40), (1_000, 40), (1_800, 0)])
def test_age_buys_what_exceeds_a_step_a_single_turn(step_tokens: int, left: int) -> None:
    assert SCHEDULER.skipped_after_turn(40, step_tokens, StepLimits(1_000, 1_000)) == left


def test_no_request_waits_behind_one_that_does_not_fit() -> None:
    backlog = [
        make_candidate("first", 1, tokens=600),
        make_candidate("large", 2, tokens=600),
        make_candidate("small", 3, tokens=400),
    ]
    assert SCHEDULER.select(backlog, StepLimits(1_000, 1_000)) == ["first", "small"]


def test_memory_bounds_a_step_as_tokens_do() -> None:
    backlog = [replace(make_candidate(name, i), step_bytes=600) for i, name in enumerate("abc")]
    assert SCHEDULER.select(backlog, StepLimits(tokens=1_000, step_bytes=1_200)) == ["a", "b"]


def test_a_larger_priority_goes_first_then_an_earlier_arrival() -> None:
    backlog = [make_candidate("late", 3, 1), make_candidate("low", 1, 0), make_candidate("early", 2, 1)]
    assert SCHEDULER.select(backlog, ROOMY) == ["early", "late"]
    few_tokens = replace(backlog[1], tokens=50)
    assert SCHEDULER.select([backlog[0], few_tokens, backlog[2]], ROOMY) == ["early", "late", "low"]


@pytest.mark.parametrize(("skipped", "first"), [(31, "urgent"), (32, "patient")])
def test_being_skipped_raises_the_priority_in_whole_steps(skipped: int, first: str) -> None:
    backlog = [make_candidate("patient", 1, skipped=skipped), make_candidate("urgent", 2, priority=2)]
    assert SCHEDULER.select(backlog, ROOMY)[0] == first


@pytest.mark.parametrize("newcomers_per_step", [1, 3])
def test_no_request_waits_forever_under_a_flood_of_higher_priority(newcomers_per_step: int) -> None:
    limits = StepLimits(tokens=100, step_bytes=10**12)  # a single request fits
    backlog = [make_candidate("patient", 0)]
    arrivals = count(1)
    for step in range(1_000):
        backlog += [
            make_candidate(f"urgent-{arrival}", arrival, priority=4)
            for arrival, _ in zip(arrivals, range(newcomers_per_step), strict=False)
        ]
        chosen = SCHEDULER.select(backlog, limits)
        if chosen == ["patient"]:
            assert step >= 4 * 16, "not before its priority has risen by 4"
            return
        backlog = [
            replace(candidate, skipped=candidate.skipped + 1)
            for candidate in backlog
            if candidate.request_id not in chosen
        ]
    pytest.fail("it waited for 1,000 steps")


@given(backlog=backlogs(st.booleans()), limits=LIMITS)
def test_a_request_that_is_alone_shares_no_step(backlog: list[Candidate], limits: StepLimits) -> None:
    chosen = SCHEDULER.select(backlog, limits)
    alone = {candidate.request_id for candidate in backlog if candidate.is_alone}
    assert len(chosen) <= 1 or alone.isdisjoint(chosen)


def test_a_request_that_is_alone_has_its_turn() -> None:
    suspect = replace(make_candidate("suspect", arrival=1), is_alone=True)
    others = [make_candidate("first", arrival=0), make_candidate("last", arrival=2)]
    assert SCHEDULER.select([*others, suspect], ROOMY) == ["first", "last"]
    skipped = replace(suspect, skipped=16)
    assert SCHEDULER.select([*others, skipped], ROOMY) == ["suspect"]


@given(backlogs(), LIMITS, st.integers(1, 4))
def test_a_step_has_as_many_requests_as_it_may(
    backlog: list[Candidate], limits: StepLimits, num_requests: int
) -> None:
    alike = [replace(candidate, priority=0) for candidate in backlog]
    unbounded = SCHEDULER.select(alike, limits)
    bounded = SCHEDULER.select(alike, replace(limits, num_requests=num_requests))
    assert bounded == unbounded[:num_requests] or len(bounded) == num_requests


@given(backlogs(st.booleans()), LIMITS)
def test_requests_of_same_steps_alone_share_one(backlog: list[Candidate], limits: StepLimits) -> None:
    by_id = {candidate.request_id: candidate for candidate in backlog}
    chosen = [by_id[request_id] for request_id in STATIC.select(backlog, limits)]
    assert chosen[:1] == chosen_of(backlog, limits)[:1], "the same one goes first"
    assert len({(candidate.num_steps, candidate.step) for candidate in chosen}) <= 1


def test_those_in_the_same_step_share_it_and_others_wait_for_the_next() -> None:
    first = replace(make_candidate("first", 1), num_steps=8, step=2)
    mate = replace(first, request_id="mate", arrival=4)
    newcomer, shorter = replace(first, request_id="new", arrival=2, step=0), make_candidate("short", 3)
    assert STATIC.select([first, newcomer, shorter, mate], ROOMY) == ["first", "mate"]


@pytest.mark.parametrize("scheduler", [SCHEDULER, STATIC])
def test_no_request_waits_forever_beside_a_flood_in_other_steps(scheduler: StepScheduler) -> None:
    limits = replace(ROOMY, num_requests=2)
    patient = replace(make_candidate("patient", 0), num_steps=50)
    for step in range(1_000):
        flood = [make_candidate(f"urgent-{step}-{i}", 1 + step * 2 + i, priority=4) for i in range(2)]
        if "patient" in scheduler.select([patient, *flood], limits):
            return
        patient = replace(patient, skipped=patient.skipped + 1)
    pytest.fail("it waited for 1,000 steps")


def test_the_step_after_next_is_that_of_the_requests_which_are_left() -> None:
    backlog = [
        replace(make_candidate("last step", arrival=0, tokens=6), num_steps=4, step=3),
        replace(make_candidate("goes on", arrival=1, tokens=4), num_steps=4, step=2),
        replace(make_candidate("waits", arrival=2, tokens=6), num_steps=4, step=0),
    ]
    limits = StepLimits(tokens=10, step_bytes=1_000)
    chosen = SCHEDULER.select(backlog, limits)
    assert chosen == ["last step", "goes on"]
    assert SCHEDULER.select_after(backlog, chosen, limits) == ["goes on", "waits"]


def test_after_a_turn_that_is_not_its_steps_last_a_request_is_in_the_same_step() -> None:
    turn = replace(make_candidate("large", 0, tokens=10), num_steps=4, step=3, turns_left=2, step_tokens=20)
    limits = StepLimits(tokens=10, step_bytes=1_000)
    assert SCHEDULER.select_after([turn], ["large"], limits) == ["large"]
    assert SCHEDULER.select_after([replace(turn, turns_left=1)], ["large"], limits) == []


def test_an_idle_engine_waits_for_company_until_it_has_waited_long_enough() -> None:
    waiting = [make_candidate("a", 1), make_candidate("b", 2)]
    assert STATIC.seconds_to_wait(waiting, ROOMY, waited_seconds=0.2) == pytest.approx(0.3)
    assert STATIC.seconds_to_wait(waiting, ROOMY, waited_seconds=0.5) == 0
    assert SCHEDULER.seconds_to_wait(waiting, ROOMY, waited_seconds=0.0) == 0, "by default it never does"
    assert STATIC.seconds_to_wait([], ROOMY, waited_seconds=0.0) == 0


def test_a_full_step_waits_for_no_company() -> None:
    waiting = [make_candidate("a", 1), make_candidate("b", 2)]
    for full in (replace(ROOMY, num_requests=2), replace(ROOMY, tokens=200), replace(ROOMY, step_bytes=2)):
        assert STATIC.seconds_to_wait(waiting, full, waited_seconds=0.0) == 0
        assert STATIC.seconds_to_wait(waiting[:1], full, waited_seconds=0.0) > 0


def test_an_engine_at_work_and_a_request_that_is_alone_wait_for_no_company() -> None:
    begun, alone = replace(make_candidate("a", 1), step=1), replace(make_candidate("a", 1), is_alone=True)
    others = [make_candidate("b", 2)]
    assert STATIC.seconds_to_wait([begun, *others], ROOMY, waited_seconds=0.0) == 0
    assert STATIC.seconds_to_wait([alone, *others], ROOMY, waited_seconds=0.0) == 0


def swapped_out(excess_bytes: int, *held: int) -> list[str]:
    """Return which of waiting requests, in the order of their turns, give back what they hold."""
    waiting = [
        replace(make_candidate(f"r{number}", number), held_bytes=num_bytes)
        for number, num_bytes in enumerate(held)
    ]
    return SCHEDULER.swapped_out(waiting, ROOMY, excess_bytes)


def test_the_last_requests_give_back_their_memory_until_it_is_enough() -> None:
    assert swapped_out(0, 10, 10, 10) == []
    assert swapped_out(10, 10, 10, 10) == ["r2"]
    assert swapped_out(11, 10, 10, 10) == ["r2", "r1"]
    assert swapped_out(99, 10, 10, 10) == ["r2", "r1", "r0"]


def test_a_request_that_holds_nothing_gives_nothing_back() -> None:
    assert swapped_out(10, 10, 10, 0) == ["r1"]


def test_requests_of_lower_priority_give_back_their_memory_first() -> None:
    low, high = (
        replace(make_candidate(name, 0, priority=rank), held_bytes=1) for name, rank in (("a", 0), ("b", 1))
    )
    assert SCHEDULER.swapped_out([low, high], ROOMY, 1) == ["a"]
