"""One trace on several cluster managers: what is played, what figures follow, and the simulated fleets."""

import json
import math
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fleet.figures import Course, Struck, area, figures_of, replaced_after
from benchmarks.fleet.looks import Hit, Look, played_of
from benchmarks.fleet.plot import plotted
from benchmarks.fleet.simulated import FleetSettings, Measured, simulated
from benchmarks.fleet.trace import FULL, LEAST, MOST, LossKind, MachineLoss, trace
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.resources.job import JobResource
from reference.fleet_engines import regions
from support.resources import make_job

SETTINGS = FleetSettings(target_seconds=1.0, lease_seconds=8.0, notice_seconds=10.0, leave_seconds=5.0)
MEASURED = Measured(step_seconds=0.03, load_seconds=4.0)
START = datetime(2026, 11, 27, tzinfo=UTC).timestamp()
SHARES = st.floats(0.0, 1.0)
SECONDS = st.floats(0.0, 100.0)


def test_a_seed_gives_one_trace_in_order_of_time() -> None:
    first = trace(FULL, 1)
    assert first == trace(FULL, 1) != trace(FULL, 2)
    assert [job.second for job in first.jobs] == sorted(job.second for job in first.jobs)
    assert [loss.kind for loss in first.losses] == [kind for _, kind in FULL.losses]


@given(SHARES, st.sets(st.text(), min_size=1))
def test_a_loss_hits_one_of_the_workers_that_have_jobs(share: float, occupied: set[str]) -> None:
    loss = MachineLoss(1.0, LossKind.DEATH, share)
    assert loss.victim(list(occupied)) in occupied
    assert loss.victim(sorted(occupied)) == loss.victim(sorted(occupied, reverse=True))


@given(st.lists(st.tuples(SECONDS, st.none() | SECONDS)), st.lists(SECONDS))
def test_a_worker_replaces_one_loss_at_most_and_none_that_was_not_known(
    seen: list[tuple[float, float | None]], ready: list[float]
) -> None:
    losses = [
        Struck(at, LossKind.DEATH, MOST, None if more is None else at + more)
        for at, more in sorted(seen, key=str)
    ]
    found = replaced_after(losses, ready)
    assert sum(seconds is not None for seconds in found) <= len(ready)
    for loss, seconds in zip(losses, found, strict=True):
        assert seconds is None or (loss.known is not None and seconds >= loss.known - loss.second - 1e-9)


def test_the_loss_that_was_known_first_is_made_good_first() -> None:
    slow, fast = (
        Struck(10.0, LossKind.DEATH, MOST, known=30.0),
        Struck(12.0, LossKind.NOTICE, MOST, known=13.0),
    )
    assert replaced_after([slow, fast], [11.0, 18.0, 36.0]) == [26.0, 6.0]


@given(st.lists(st.tuples(SECONDS, st.integers(0, 9)), min_size=1), SECONDS)
def test_the_area_lies_between_the_least_and_the_greatest_count(
    samples: list[tuple[float, int]], until: float
) -> None:
    ordered = [(0.0, samples[0][1]), *sorted(samples)]
    counts = [count for _, count in ordered]
    assert min(counts) * until - 1e-6 <= area(ordered, until) <= max(counts) * until + 1e-6


def test_simulated_fleets_lose_no_job_and_kubernetes_replaces_a_dead_worker_when_it_tolerates_no_more() -> (
    None
):
    patient, tolerant = simulated(trace(FULL, 1), MEASURED, SETTINGS, 1).values()
    for course in (patient, tolerant):
        assert len(course.waits) == len(trace(FULL, 1).jobs)
        assert course.num_redrawn == 2, "each death takes a job with it, the notice none"
        assert max(count for _, count in course.workers) <= MOST
        assert LEAST * 0.9 <= course.worker_seconds / course.seconds <= MOST
    [patient_death, _], [tolerant_death, _] = (
        figures_of(course).replaced[LossKind.DEATH] for course in (patient, tolerant)
    )
    assert (patient_death or math.inf) > 350.0
    assert 60.0 <= (tolerant_death or math.inf) < 100.0


def test_without_losses_nothing_is_drawn_again() -> None:
    quiet = replace(trace(FULL, 1), losses=())
    course, _ = simulated(quiet, MEASURED, SETTINGS, 1).values()
    assert (course.num_redrawn, course.losses) == (0, ())


def test_looks_at_a_fleet_tell_when_a_loss_was_known_and_replaced() -> None:
    hit = Hit(MachineLoss(9.0, LossKind.DEATH, 0.0), second=10.0, worker="a", node="n1")
    looks = [
        Look(0.0, {"a": "1"}, frozenset(), {"a": "n1"}),
        Look(10.0, {"a": "1", "b": "2"}, frozenset({"a"}), {"a": "n1", "b": "n2"}),
        Look(11.0, {"a": "1", "b": "2"}, frozenset({"a"}), {"a": "n1", "b": "n2"}),
        Look(15.0, {"b": "2"}, frozenset({"b"}), {"a": "n3", "b": "n2"}),
        Look(19.0, {"a": "3", "b": "2"}, frozenset(), {"a": "n3", "b": "n2"}),
    ]
    first = [Look(-9.0, {}, frozenset(), {}), Look(-7.0, {}, frozenset(), {"a": "n1"}), looks[0]]
    jobs = [job("succeeded", 1, 12.0), job("succeeded", 2, 20.0), job("failed", 3, 18.0)]
    played = played_of(jobs, START, first, looks, [hit])
    assert played.course.losses == (Struck(10.0, LossKind.DEATH, num_ready=2, known=15.0),)
    assert figures_of(played.course).replaced[LossKind.DEATH] == [9.0]
    assert (played.course.num_lost, played.course.num_redrawn) == (1, 1)
    assert played.course.workers == ((0.0, 1), (10.0, 2), (15.0, 1), (19.0, 2))
    assert played.course.waits == pytest.approx((8.0, 16.0))
    assert played.course.worker_seconds == pytest.approx(10.0 + 2 * 10.0)
    assert (played.load_seconds, played.step_seconds) == pytest.approx((7.0, 0.1))


def job(status: str, attempt: int, finished: float) -> JobResource:
    """Return a job that was submitted in the first second of a trace, and drawn for two."""
    times = {"created_at": 2.0, "started_at": 2.0, "finished_at": finished}
    written = {name: datetime.fromtimestamp(START + at, UTC).isoformat() for name, at in times.items()}
    drawn = {"input": {"num_inference_steps": 20}, "actual_seconds": 2.0, "attempt": attempt}
    return make_job(status=JobStatus(status), **drawn, **written)


@pytest.fixture
def course() -> Course:
    return Course(
        seconds=100.0,
        waits=(1.0, 2.0, 3.0),
        num_lost=0,
        num_redrawn=1,
        losses=(Struck(10.0, LossKind.DEATH, MOST, 20.0), Struck(40.0, LossKind.NOTICE, MOST, 41.0)),
        ready=(25.0,),
        workers=((0.0, 2), (10.0, 1), (25.0, 2)),
        worker_seconds=190.0,
    )


def test_the_page_has_the_newest_result(tmp_path: Path, course: Course) -> None:
    assert "No result is there yet" in regions(tmp_path)["fleet-engines"]
    for day, name in (("2026-11-20", "Older"), ("2026-11-27", "Slurm")):
        fleets = {name: asdict(figures_of(course))}
        content = {"conditions": {"cpu": "x"}, "fleets": fleets}
        (tmp_path / f"fleet-engines_cpu_{day}.json").write_text(json.dumps(content))
    page = regions(tmp_path)["fleet-engines"]
    assert "| Slurm | 2.0 s | 2.9 s | 190 | 0 of 3 | 1 | 15 s | none in time |" in page
    assert "Older" not in page


def test_the_plot_draws_each_fleet_and_each_loss(course: Course) -> None:
    drawn = plotted({"Slurm": course, "Ray": course})
    assert drawn.count("<polyline") == 2
    assert drawn.count("stroke-dasharray") == len(course.losses)
