"""The size of a pool follows its work, its rate, its floors and its past."""

from collections.abc import Mapping
from typing import Any

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.jobs.policy.scaling import (
    BUCKET_SECONDS,
    HOUR,
    WEEK,
    DesiredWorkers,
    Floor,
    PoolDemand,
    ScaleConfig,
    bucket_of,
    desired_workers,
    recent_rate,
    workers_worth,
)
from diffuserve.settings import Settings

MONDAY = 1_767_571_200.0  # 5 January 2026, 0:00 UTC
NINE = int(MONDAY + 9 * HOUR)
CONFIG = ScaleConfig(scale_target_seconds=120.0, scale_useful_share=0.5)


def sized(now: float = NINE, floors: tuple[Floor, ...] = (), **demand: Any) -> DesiredWorkers:
    return desired_workers(PoolDemand(**demand), now, floors, CONFIG)


def in_hour(start: int, seconds: float) -> Mapping[int, float]:
    """Return work that is spread over an hour."""
    return {at: seconds / 12 for at in range(start, start + HOUR, BUCKET_SECONDS)}


def test_an_idle_pool_needs_nobody() -> None:
    assert sized().total == 0


def test_the_least_work_needs_one_worker() -> None:
    assert sized(queued_seconds=0.1).total == 1


def test_work_that_waits_and_work_that_runs_is_to_be_done_within_the_target() -> None:
    assert sized(queued_seconds=200.0, running_seconds=100.0).for_work == 3


def test_a_model_that_loads_slowly_needs_fewer_workers_for_the_same_work() -> None:
    assert sized(queued_seconds=360.0, load_seconds=60.0).for_work == 2


def test_a_clip_weighs_more_than_a_thumbnail() -> None:
    assert sized(queued_seconds=600.0).for_work > sized(queued_seconds=0.5).for_work


def test_the_rate_of_accepted_work_keeps_workers_although_nothing_waits() -> None:
    accepted = {NINE - 300: 750.0}
    assert recent_rate(accepted, NINE) == 2.5
    assert sized(accepted=accepted).total == 5  # busy half of the time


def test_work_of_half_an_hour_ago_counts_no_more() -> None:
    assert sized(accepted={NINE - 1800: 9_000.0}).total == 0


@pytest.mark.parametrize(
    ("now", "workers"),
    [
        (MONDAY + 8 * HOUR, 6),
        (MONDAY + 19 * HOUR - 1, 6),
        (MONDAY + 19 * HOUR, 2),
        (MONDAY - 1, 2),  # Sunday
        (MONDAY + 5 * 24 * HOUR + 9 * HOUR, 2),  # Saturday
    ],
)
def test_the_largest_floor_of_the_hour_and_day_holds(now: float, workers: int) -> None:
    by_day = Floor(workers=6, days=(0, 1, 2, 3, 4), start_hour=8, end_hour=19)
    assert sized(now, (Floor(workers=2), by_day)).total == workers


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"workers": -1}, "-1 workers"),
        ({"workers": 1, "days": (7,)}, "day 7"),
        ({"workers": 1, "start_hour": 20, "end_hour": 6}, "give a night as two floors"),
        ({"workers": 1, "end_hour": 25}, "0…24"),
    ],
)
def test_a_floor_that_can_never_hold_is_refused(values: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Floor(**values)


def past(*seconds: float) -> dict[str, Any]:
    """Return the work accepted on Mondays from nine to ten, last week first."""
    accepted: dict[int, float] = {}
    for week, each in enumerate(seconds, 1):
        accepted |= in_hour(NINE - week * WEEK, each)
    return {"accepted": accepted, "known_since": NINE - len(seconds) * WEEK}


def test_a_prediction_is_shown_and_counts_only_when_it_is_switched_on() -> None:
    size = sized(**past(3 * 3_600.0))
    assert (size.predicted, size.total) == (6, 0)
    acting = ScaleConfig(scale_useful_share=0.5, scale_predictive=True)
    assert desired_workers(PoolDemand(**past(3 * 3_600.0)), NINE, (), acting).total == 6


def test_one_burst_in_four_weeks_does_not_set_the_prediction() -> None:
    assert sized(**past(3_600.0, 36_000.0, 3_600.0, 3_600.0)).predicted == 2


def test_a_quiet_week_that_is_known_counts_as_one() -> None:
    demand = past(3_600.0, 0.0, 0.0, 0.0)
    assert sized(**demand).predicted == 0


def test_a_prediction_comes_ten_minutes_before_its_hour() -> None:
    assert sized(NINE - 601, **past(3_600.0)).predicted == 0
    assert sized(NINE - 600, **past(3_600.0)).predicted == 2


def test_other_days_predict_nothing() -> None:
    assert sized(NINE + 24 * HOUR, **past(3_600.0)).predicted == 0


def test_floors_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFUSERVE_SCALE_FLOORS", '{"tiny": [{"workers": 2, "days": [5, 6]}]}')
    config = Settings().api_config(auth=True).scale
    assert config.scale_floors == {"tiny": (Floor(workers=2, days=(5, 6)),)}


def test_a_bad_floor_is_told_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFUSERVE_SCALE_FLOORS", '{"tiny": [{"workers": 2, "days": [7]}]}')
    with pytest.raises(InvalidParams, match=r"DIFFUSERVE_SCALE_FLOORS.*day 7"):
        Settings.with_options()


def test_work_of_queues_of_their_own_adds_up_before_it_is_rounded() -> None:
    one = PoolDemand(queued_seconds=CONFIG.scale_target_seconds / 4)
    assert workers_worth(one, 0.0, CONFIG) == 0.25
    assert desired_workers(one, 0.0, (), CONFIG).total == 1
    busy = PoolDemand(accepted={bucket_of(0.0): 600.0 * CONFIG.scale_useful_share})
    assert workers_worth(busy, 300.0, CONFIG) > 1.0
