"""A queue that was read up to a second ago, and what changed since, tell as much as one that is read anew."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import pytest

from diffuserve.domain.jobs.job import QueueEstimate
from diffuserve.jobs.database.lane_change import LaneChange, Moved
from diffuserve.jobs.policy.estimate import WorkAhead, estimate_wait
from diffuserve.jobs.reads.outlook import OwnQueue, QueueState
from diffuserve.jobs.reads.recent_changes import RecentChanges
from diffuserve.jobs.records import lane_of
from support.simulated_queue import MODEL, SimulatedJob, SimulatedQueue, draw_jobs, sharing_workers

_READ_SECONDS = 1.0


class NotedQueue(SimulatedQueue):
    """A simulated queue whose changes are noted as a control plane notes its own."""

    def __init__(self, num_workers: int, num_slots: int) -> None:
        super().__init__(sharing_workers(num_workers, num_slots))
        self.recent = RecentChanges(lambda: self.now)

    def put(self, job: SimulatedJob) -> None:
        super().put(job)
        own = job.job
        change = LaneChange(
            lane_of(own), Moved.IN, [(own.seq, own.cost_seconds)], own.band, own.tenant_id, own.model
        )
        self.recent.note([change])

    def _take(self) -> SimulatedJob | None:
        job = super()._take()
        if job is not None:
            own = job.job
            self.recent.note([LaneChange(lane_of(own), Moved.CLAIMED, [(own.seq, own.cost_seconds)])])
        return job

    def _settle(self, job: SimulatedJob) -> None:
        super()._settle(job)
        self.recent.note([LaneChange("", Moved.ENDED, [(0, job.job.cost_seconds)], model=MODEL)])

    def read(self) -> QueueState:
        lanes = {f"{lane.band.rank}|{lane.tenant_id}|{lane.model}": lane for lane in self.lane_sizes}
        return QueueState(
            mark=self.recent.mark,
            lanes=lanes,
            queued={(lane.tenant_id, lane.model) for lane in lanes.values()},
            standings=self.standings,
            floors={},
            handicaps={},
            running={MODEL: self.running},
            workers=(),
        )

    def read_own(self, job: SimulatedJob) -> OwnQueue:
        own = job.job
        lane = self._waiting[own.tenant_id, own.band]
        costs = [other.job.cost_seconds for other in lane]
        return OwnQueue(
            mark=self.recent.mark,
            lane=lane_of(own),
            standing=self.standings[own.tenant_id],
            width=1,
            parts=[other.job.seq for other in lane],
            num_jobs=list(range(len(lane) + 1)),
            work_seconds=list(accumulate(costs, initial=0.0)),
        )


@dataclass
class StaleOutlook:
    """Reads each second, and estimates from that and from what changed since."""

    queue: NotedQueue
    read: QueueState
    read_at: float
    own: dict[str, OwnQueue] = field(default_factory=dict)

    def look(self, job: SimulatedJob) -> None:
        """Read what is older than a second, as for an estimate of this job before it is submitted."""
        if self.queue.now - self.read_at >= _READ_SECONDS:
            self.read, self.read_at, self.own = self.queue.read(), self.queue.now, {}
        self.own.setdefault(lane_of(job.job), self.queue.read_own(job))

    def estimate(self, job: SimulatedJob) -> QueueEstimate:
        own, recent = self.own[lane_of(job.job)], self.queue.recent
        now = self.read.after(recent.since(self.read.mark))
        num_jobs, work_seconds = own.before(job.job.seq, recent.since(own.mark))
        running, really = now.running[MODEL], self.queue.running
        assert running.num_jobs == really.num_jobs
        assert running.seconds == pytest.approx(really.seconds, abs=1e-6)
        ahead = WorkAhead(num_jobs, work_seconds, running, len(self.queue.workers))
        standings = {**self.queue.standings, **now.standings}
        return estimate_wait(job.job, [*now.lanes.values()], standings, ahead)


def _played(
    load: float, num_workers: int, num_slots: int
) -> Iterator[tuple[SimulatedJob, QueueEstimate, int]]:
    """Serve jobs, each with what it was told and how many were really ahead in its own lane."""
    queue = NotedQueue(num_workers, num_slots)
    outlook = StaleOutlook(queue, queue.read(), 0.0)
    jobs = draw_jobs(random.Random(f"recent {load} {num_workers}"), 300, load * num_workers)
    told = []
    for job in jobs:
        queue.run_until(job.arrived_at)
        outlook.look(job)
        queue.put(job)
        told.append((outlook.estimate(job), queue.ahead_of(job.job).num_jobs))
        queue.claim()
    queue.run_until(float("inf"))
    return ((job, estimate, ahead) for job, (estimate, ahead) in zip(jobs, told, strict=True))


def _is_inside(job: SimulatedJob, estimate: QueueEstimate) -> bool:
    assert estimate.eta_s_low is not None
    assert estimate.eta_s_high is not None
    return estimate.eta_s_low <= job.ended_at - job.arrived_at <= estimate.eta_s_high


@pytest.mark.parametrize("num_slots", [1, 8])
def test_the_first_response_of_four_in_five_jobs_holds(num_slots: int) -> None:
    found = [
        played
        for load in (0.6, 0.95, 1.1)
        for num_workers in (1, 4)
        for played in _played(load, num_workers, num_slots)
    ]
    assert sum(_is_inside(job, estimate) for job, estimate, _ in found) >= 0.8 * len(found)
    assert all(estimate.ahead >= ahead for _, estimate, ahead in found)


def test_what_is_being_submitted_counts_until_it_is_in_the_queue() -> None:
    recent = RecentChanges(lambda: 0.0)
    change = LaneChange("lane", Moved.IN, [(7, 2.0)])
    with recent.pending(change):
        assert list(recent.since(recent.mark)) == [change]
    assert list(recent.since(recent.mark)) == []


def test_only_what_is_recent_is_remembered() -> None:
    now = 0.0
    recent = RecentChanges(lambda: now)
    old, new = (LaneChange(name, Moved.OUT, [(1, 1.0)]) for name in ("old", "new"))
    recent.note([old])
    mark = recent.mark
    now = 60.0
    recent.note([new])
    assert list(recent.since(0)) == [new]
    assert list(recent.since(mark)) == [new]
    assert list(recent.since(recent.mark)) == []
