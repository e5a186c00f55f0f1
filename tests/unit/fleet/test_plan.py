"""What a fleet starts and takes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.fleet.plan import FleetBounds, Order, Start, Withdraw, plan

NUMBERS = st.integers(0, 50)


@pytest.mark.parametrize(
    ("want", "placed", "waiting", "order"),
    [
        (3, 0, "", Start(3)),
        (3, 1, "a", Start(1)),
        (3, 3, "", Withdraw(())),
        (3, 1, "ab", Withdraw(())),
        (1, 1, "ab", Withdraw(("a", "b"))),
        (2, 1, "ab", Withdraw(("b",))),
        (0, 4, "", Withdraw(())),
        (0, 4, "a", Withdraw(("a",))),
    ],
)
def test_what_is_missing_is_started_and_what_waits_is_taken_back(
    want: int, placed: int, waiting: str, order: Order
) -> None:
    assert plan(want, placed, tuple(waiting)) == order


@given(NUMBERS, NUMBERS, NUMBERS)
def test_an_order_brings_the_number_as_near_as_it_can_without_ending_a_placed_worker(
    want: int, placed: int, num_waiting: int
) -> None:
    waiting = [f"w{number}" for number in range(num_waiting)]
    order = plan(want, placed, waiting)
    if isinstance(order, Start):
        assert placed + num_waiting + order.count == want
        return
    left = num_waiting - len(order.names)
    assert order.names == tuple(waiting[left:])
    assert placed + left == max(want, placed) or placed + num_waiting == want


@given(NUMBERS, st.integers(0, 20), st.integers(0, 20))
def test_bounds_hold(wanted: int, least: int, more: int) -> None:
    bounds = FleetBounds(least, least + more)
    assert least <= bounds.of(wanted) <= least + more
    assert bounds.of(bounds.of(wanted)) == bounds.of(wanted)
