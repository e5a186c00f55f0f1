"""Simulate a flood of long batch jobs and interactive arrivals, with and without preemption.

    python -m benchmarks preemption --out benchmarks/results/preemption_2026-11-23

Workers with one place each draw batch jobs of 100 steps that never run out. Interactive jobs of 20 steps
arrive at random. The product's own policy (`diffuserve.jobs.policy.preemption`) says which job makes room.
What that costs is simulated too: the rest of the step under way, the way of the command, of the claim and of
the checkpoint, and a step's time to encode anew. All seconds of machines are assumptions, stated below.
`--quick` simulates the fleets of eight workers for a quarter of an hour.
"""

import argparse
import heapq
import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.handover import transfer_seconds
from diffuserve.jobs.policy.preemption import PreemptibleJob, cheapest, may_make_room

COMMAND_SECONDS = 0.05  # from the store by the bus and the agent to the engine
CLAIM_SECONDS = 0.05  # from a place that is free to a job in the engine
BATCH_STEPS, INTERACTIVE_STEPS = 100, 20
LATENT_BYTES = 1_000_000
SEED = 7


@dataclass(frozen=True)
class Load:
    """A fleet and what arrives there: `share` of its time is asked for by interactive jobs."""

    workers: int
    step_seconds: float
    share: float
    hours: float = 2.0

    @property
    def interactive_seconds(self) -> float:
        """Seconds that an interactive job takes."""
        return INTERACTIVE_STEPS * self.step_seconds

    def arrivals(self) -> list[float]:
        """Return when interactive jobs arrive."""
        rng, now, times = random.Random(SEED), 0.0, []
        rate = self.share * self.workers / self.interactive_seconds
        while (now := now + rng.expovariate(rate)) < self.hours * 3600:
            times.append(now)
        return times


@dataclass
class Worker:
    """A worker and the batch job on it, if it draws one now; `run` counts what it was given."""

    name: str
    job: PreemptibleJob | None = None
    since: float = 0.0
    run: int = 0
    is_told: bool = False


@dataclass
class Fleet:
    """A simulation; `preempts` or lets interactive jobs wait for the end of a batch job."""

    load: Load
    config: StoreConfig
    preempts: bool
    now: float = 0.0
    workers: list[Worker] = field(default_factory=list)
    preempted: deque[PreemptibleJob] = field(default_factory=deque)
    waiting: deque[float] = field(default_factory=deque)
    waits: list[float] = field(default_factory=list)
    num_promised: int = 0
    num_jobs: int = 0
    num_preempted: int = 0
    useful_steps: int = 0
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    num_events: int = 0

    def schedule(self, when: float, act: Callable[[], None]) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (when, self.num_events, act))

    def simulate(self) -> None:
        rng = random.Random(SEED)
        for number in range(self.load.workers):
            worker = Worker(f"gpu-{number}")
            self.workers.append(worker)
            self.draw(worker, self.next_batch_job(worker, step=rng.randrange(BATCH_STEPS)))
        for arrival in self.load.arrivals():
            self.schedule(arrival, partial(self.arrives, arrival))
        end = self.load.hours * 3600
        while self.events and self.events[0][0] <= end:
            self.now, _, act = heapq.heappop(self.events)
            act()
        self.useful_steps += sum(self.steps_done(worker) for worker in self.workers)

    def arrives(self, arrival: float) -> None:
        self.waiting.append(arrival)
        if self.preempts:
            self.schedule(self.now + self.config.preempt_after_seconds, self.look)

    def look(self) -> None:
        """Have a room made for each job that waits and has none promised."""
        overdue = [at for at in self.waiting if self.now - at >= self.config.preempt_after_seconds - 1e-9]
        while len(overdue) > self.num_promised:
            running = [self.progress(worker) for worker in self.workers if worker.job and not worker.is_told]
            able = [job for job in running if may_make_room(job, self.now, self.config)]
            job = cheapest(able, {})
            if job is None:
                self.schedule(self.now + 0.25, self.look)
                return
            self.tell(next(worker for worker in self.workers if worker.name == job.worker_id))

    def tell(self, worker: Worker) -> None:
        """Put a job down at the end of the step that is under way when the command arrives."""
        worker.is_told = True
        self.num_promised += 1
        step_seconds, told_at = self.load.step_seconds, self.now + COMMAND_SECONDS
        steps = max(-(-(told_at - worker.since) // step_seconds), 0)
        run = worker.run
        self.schedule(worker.since + steps * step_seconds, lambda: self.stops(worker, run))

    def stops(self, worker: Worker, run: int) -> None:
        if worker.run != run or worker.job is None:  # it was finished meanwhile
            return
        job = self.progress(worker)
        self.useful_steps += self.steps_done(worker)
        self.num_preempted += 1
        self.preempted.append(PreemptibleJob(**asdict(job) | {"num_preempted": job.num_preempted + 1}))
        self.becomes_free(worker)

    def becomes_free(self, worker: Worker) -> None:
        worker.job, worker.is_told = None, False
        worker.run += 1
        self.schedule(self.now + CLAIM_SECONDS, lambda: self.claims(worker))

    def claims(self, worker: Worker) -> None:
        self.num_promised = max(self.num_promised - 1, 0)
        if self.waiting:
            arrival = self.waiting.popleft()
            self.waits.append(self.now - arrival)
            self.schedule(self.now + self.load.interactive_seconds, lambda: self.finishes_interactive(worker))
        elif self.preempted:
            self.draw(worker, self.preempted.popleft(), self.resume_seconds)
        else:
            self.draw(worker, self.next_batch_job(worker))

    @property
    def resume_seconds(self) -> float:
        """Seconds until a job that was put down steps again."""
        return transfer_seconds(3 * LATENT_BYTES) / 2 + self.load.step_seconds

    def finishes_interactive(self, worker: Worker) -> None:
        self.useful_steps += INTERACTIVE_STEPS
        self.becomes_free(worker)

    def draw(self, worker: Worker, job: PreemptibleJob, begins_after: float = 0.0) -> None:
        worker.job = PreemptibleJob(**asdict(job) | {"worker_id": worker.name})
        worker.since, run = self.now + begins_after, worker.run
        end = worker.since + (BATCH_STEPS - job.step) * self.load.step_seconds
        self.schedule(end, lambda: self.finishes_batch(worker, run))

    def finishes_batch(self, worker: Worker, run: int) -> None:
        if worker.run == run:
            self.useful_steps += self.steps_done(worker)
            self.becomes_free(worker)

    def steps_done(self, worker: Worker) -> int:
        """Return the steps of its batch job that a worker has done since it was given it."""
        if worker.job is None:
            return 0
        steps = int((self.now - worker.since) / self.load.step_seconds + 1e-6)
        return min(max(steps, 0), BATCH_STEPS - worker.job.step)

    def progress(self, worker: Worker) -> PreemptibleJob:
        assert worker.job is not None
        return PreemptibleJob(**asdict(worker.job) | {"step": worker.job.step + self.steps_done(worker)})

    def next_batch_job(self, worker: Worker, step: int = 0) -> PreemptibleJob:
        self.num_jobs += 1
        return PreemptibleJob(
            job_id=f"{self.num_jobs:06}",
            worker_id=worker.name,
            cost_seconds=BATCH_STEPS * self.load.step_seconds,
            latent_bytes=LATENT_BYTES,
            step=step,
            total=BATCH_STEPS,
        )


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(int(q * len(values)), len(values) - 1)]


def row_of(load: Load) -> dict[str, float]:
    """Simulate a load in both ways, and compare them."""
    config = StoreConfig()
    without, with_it = Fleet(load, config, preempts=False), Fleet(load, config, preempts=True)
    for fleet in (without, with_it):
        fleet.simulate()
    return {
        "workers": load.workers,
        "step_seconds": load.step_seconds,
        "interactive_share": load.share,
        "interactive_jobs": len(with_it.waits),
        "preempted": with_it.num_preempted,
        "p50_without": round(quantile(without.waits, 0.5), 2),
        "p99_without": round(quantile(without.waits, 0.99), 2),
        "p50": round(quantile(with_it.waits, 0.5), 2),
        "p99": round(quantile(with_it.waits, 0.99), 2),
        "p99_allowed": round(1.0 + 2 * load.step_seconds, 2),
        "throughput": round(with_it.useful_steps / without.useful_steps, 4),
    }


LOADS = [
    Load(workers, step_seconds, share)
    for workers in (2, 8, 32)
    for step_seconds in (0.2, 1.0)
    for share in (0.05, 0.2)
]


def table(rows: list[dict[str, float]]) -> str:
    """Return the rows as a table in Markdown."""
    head = f"| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}\n"
    return head + "".join(f"| {' | '.join(f'{value:g}' for value in row.values())} |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Preemption under a flood of batch jobs, simulated.")
    parser.add_argument("--out", type=Path, help="Write OUT.json and OUT.md.")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    loads = [replace(load, hours=0.25) for load in LOADS if load.workers == 8] if args.quick else LOADS
    rows = [row_of(load) for load in loads]
    print(table(rows))
    if args.out:
        found = {"seed": SEED, "hours": loads[0].hours, "rows": rows}
        args.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
