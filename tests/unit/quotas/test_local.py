"""The arithmetic of quotas, with a clock that the test advances."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.quotas.base import Allowance, Rate
from diffuserve.quotas.local import LocalQuotas


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quotas(clock: Clock) -> LocalQuotas:
    return LocalQuotas(clock)


async def take(quotas: LocalQuotas, rate: Rate, times: int, name: str = "ada") -> list[Allowance]:
    return [await quotas.take(name, rate) for _ in range(times)]


@pytest.mark.parametrize(
    ("per_second", "burst"), [(100, 100), (1, 1), (2.5, 2), (0.5, 1), (0.3, 1), (1 / 3600, 1)]
)
async def test_a_burst_is_the_calls_of_a_second_and_at_least_1(
    quotas: LocalQuotas, per_second: float, burst: int
) -> None:
    allowances = await take(quotas, Rate(per_second), burst + 3)
    assert [allowance.is_granted for allowance in allowances] == [True] * burst + [False] * 3
    assert [allowance.num_left for allowance in allowances] == [*range(burst - 1, -1, -1), 0, 0, 0]


@pytest.mark.parametrize("per_second", [1_000, 100, 7, 2.5, 0.3, 1 / 3600])
async def test_a_call_is_granted_after_retry_after_and_no_earlier(
    quotas: LocalQuotas, clock: Clock, per_second: float
) -> None:
    rate = Rate(per_second)
    refused = (await take(quotas, rate, rate.burst + 1))[-1]
    assert 0 < refused.retry_after <= rate.interval + 1e-9
    clock.now += refused.retry_after * 0.99
    assert not (await quotas.take("ada", rate)).is_granted
    clock.now += refused.retry_after * 0.01
    assert (await quotas.take("ada", rate)).is_granted


async def test_refused_calls_are_not_counted(quotas: LocalQuotas, clock: Clock) -> None:
    allowances = await take(quotas, Rate(2), 50)
    assert {allowance.retry_after for allowance in allowances[2:]} == {0.5}
    clock.now += 1.0
    assert [allowance.is_granted for allowance in await take(quotas, Rate(2), 3)] == [True, True, False]


async def test_names_are_counted_separately(quotas: LocalQuotas) -> None:
    assert not (await take(quotas, Rate(1), 2))[-1].is_granted
    assert (await quotas.take("bob", Rate(1))).is_granted


async def test_a_higher_rate_applies_at_once(quotas: LocalQuotas) -> None:
    assert not (await take(quotas, Rate(1), 2))[-1].is_granted
    assert (await quotas.take("ada", Rate(100))).num_left == 0, "the debt remains"


@given(
    per_second=st.floats(0.01, 1_000),
    pauses=st.lists(st.floats(0, 3), min_size=1, max_size=60),
)
async def test_no_caller_gets_more_than_the_rate_and_a_burst(per_second: float, pauses: list[float]) -> None:
    clock = Clock()
    quotas, rate, granted = LocalQuotas(clock), Rate(per_second), 0
    start = clock.now
    for pause in pauses:
        clock.now += pause
        granted += (await quotas.take("ada", rate)).is_granted
        assert granted <= math.floor((clock.now - start) * per_second + 1e-3) + rate.burst
