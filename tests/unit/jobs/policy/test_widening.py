"""Ranges are widened by as much as recent ones were too narrow, and never narrowed."""

from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.jobs.job import QueueEstimate
from diffuserve.jobs.policy.widening import Told, Widening, widening_after

_RATIOS = st.floats(0.01, 100.0)
_ENDS = st.lists(st.tuples(_RATIOS, _RATIOS), min_size=20, max_size=64)


@given(_ENDS)
def test_ranges_are_widened_within_bounds_and_never_narrowed(ends: list[tuple[float, float]]) -> None:
    widening = widening_after(ends)
    assert 0.1 <= widening.low <= 1.0 <= widening.high <= 10.0


@given(_ENDS)
def test_nine_in_ten_of_the_recent_ends_would_lie_on_the_right_side_of_each_end(
    ends: list[tuple[float, float]],
) -> None:
    widening = widening_after(ends)
    assert sum(high > widening.high for _, high in ends) <= len(ends) / 10 or widening.high == 10.0
    assert sum(low < widening.low for low, _ in ends) <= len(ends) / 10 or widening.low == 0.1


@given(st.lists(st.tuples(_RATIOS, _RATIOS), max_size=19))
def test_few_ends_tell_nothing(ends: list[tuple[float, float]]) -> None:
    assert widening_after(ends) == Widening()


def test_a_machine_of_a_third_of_the_speed_has_ranges_that_reach_three_times_as_far() -> None:
    ends = [Told(at=100.0, low=1.0, high=4.0).compare(112.0)] * 20
    widened = widening_after(ends).of(QueueEstimate(0, 2.0, 8.0))
    assert (widened.eta_s_low, widened.eta_s_high) == (2.0, 24.0)


def test_an_estimate_without_a_range_stays_without() -> None:
    unknown = QueueEstimate(0, None, None, "no worker serves it")
    assert Widening(0.5, 2.0).of(unknown) == unknown
