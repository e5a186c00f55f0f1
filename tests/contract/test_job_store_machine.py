"""A state machine over the job store: operations in any order, on both databases.

The machine remembers which jobs were accepted. After every step the store's own counters must agree
with its tables; at the end every accepted job must reach exactly one final status.
"""

import asyncio
import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from diffuserve.domain.errors import (
    DiffuserveError,
    JobNotFound,
    LatentsUnusable,
    LeaseLost,
    QueueFull,
)
from diffuserve.domain.jobs.job import Band, Fallback, JobStatus
from diffuserve.domain.tenant import Plan
from diffuserve.domain.workers.worker import Lease, LeaseEnd, ReleaseCause, WorkerRole
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import schema
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.postgres import PostgresServer
from support.store_driver import add_worker, claim, fail, finish, new_job, release, send_heartbeat

T = TypeVar("T")
_MODELS = ("red", "blue")
_TENANTS = ("ada", "bob", "cid")
_MAX_RUNNING, _MAX_QUEUED = 3, 6
_DENOISES, _DECODES = 2, 3  # workers of these roles
_NUMBERS = itertools.count()
_LEGAL = {
    "queued": {"running", "canceled", "expired", "fell_back"},
    "fell_back": {"running", "canceled", "expired"},
    "running": {"succeeded", "failed", "canceled", "canceling", "requeued", "preempted", "denoised"},
    "canceling": {"canceled"},
    "requeued": {"running", "canceled", "expired"},
    "preempted": {"running", "canceled", "expired"},
    "denoised": {"running", "canceled"},
    "failed": {"requeued"},
    "canceled": {"requeued"},
    "expired": {"requeued"},
    "succeeded": set(),
}
_FALLBACK = Fallback(
    model="blue",
    input={"prompt": "a star"},
    asked=None,
    cost_seconds=3.0,
    decode_seconds=1.0,
    step_tokens=8,
    latent_bytes=4,
)
_WATCHED = (
    schema.jobs,
    schema.job_events,
    schema.ready,
    schema.delayed,
    schema.leases,
    schema.lanes,
    schema.tenants,
)
_Tables = dict[sa.Table, list[Any]]


class JobStoreMachine(RuleBasedStateMachine):
    """Clients, workers, time and the reaper, in any order."""

    url: str
    num_denoised: int = 0  # of all runs of a class: jobs whose second phase another worker had to do

    @initialize()
    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        plan = Plan(name="small", max_running=_MAX_RUNNING, max_queued=_MAX_QUEUED)
        config = StoreConfig(plans={"small": plan}, default_plan="small")
        self.store = JobStore(self.url, MemoryEventBus(), config, self.clock)
        self.do(self.store.open())
        self.workers = [
            self.do(add_worker(self.store, *_MODELS)),
            self.do(add_worker(self.store, "red")),
            self.do(add_worker(self.store, *_MODELS, role=WorkerRole.DENOISE)),
            self.do(add_worker(self.store, *_MODELS, role=WorkerRole.DECODE)),
        ]
        self.accepted: set[str] = set()
        self.deleted: set[str] = set()
        self.leases: list[Lease] = []
        self.hand_over()

    def hand_over(self) -> None:
        """Finish the first phase of a job, which few runs would come to by themselves."""
        new = new_job(_TENANTS[0], model=_MODELS[0], cost_seconds=2.0, decode_seconds=1.0)
        self.accepted.add(self.do(self.store.jobs.submit(new)).id)
        (lease,) = self.do(claim(self.store, self.workers[_DENOISES], 1))
        self.do(finish(self.store, lease, seconds=1.0))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @rule(
        tenant=st.sampled_from(_TENANTS),
        model=st.sampled_from(_MODELS),
        band=st.sampled_from(Band),
        cost=st.floats(0.1, 50.0),
        expires_in=st.sampled_from([None, None, 5.0]),
        deadline=st.sampled_from([{}, {}, {"finish_in": 8.0}, {"finish_in": 60.0, "best_effort": True}]),
        key=st.sampled_from([None, "k1", "k2"]),
        options=st.sampled_from([{}, {"max_attempts": 1}, {"fallback": _FALLBACK}, {"worker_hint": "h"}]),
    )
    def submit(
        self,
        tenant: str,
        model: str,
        band: Band,
        cost: float,
        expires_in: float | None,
        deadline: dict[str, Any],
        key: str | None,
        options: dict[str, Any],
    ) -> None:
        new = new_job(
            tenant,
            model=model,
            band=band,
            cost_seconds=cost,
            decode_seconds=cost / 2,
            expires_in=expires_in,
            **deadline,
            **options,
            idempotency_key=key,
        )
        try:
            self.accepted.add(self.do(self.store.jobs.submit(new)).id)
        except (QueueFull, JobNotFound):  # the key's job was deleted
            return

    @rule(index=st.integers(0, 3), num_jobs=st.integers(1, 4))
    def claim(self, index: int, num_jobs: int) -> None:
        leases = self.do(claim(self.store, self.workers[index], num_jobs))
        if index == _DENOISES:
            assert all(lease.until is LeaseEnd.LATENTS and lease.latents is None for lease in leases)
        if index == _DECODES:
            assert all(lease.until is LeaseEnd.FILES and lease.latents is not None for lease in leases)
        self.leases += leases

    @rule(
        choice=st.integers(0, 99),
        how=st.sampled_from(["finish", "finish", "unusable", "broken", "bad", "drain", "preempted", "lost"]),
    )
    def end_attempt(self, choice: int, how: str) -> None:
        """Report the end of an attempt, under a live lease or under a lost one, which must change nothing."""
        if not self.leases:
            return
        lease = self.leases[choice % len(self.leases)]
        before = self.rows(schema.jobs)
        live = {(row.job_id, row.lease_token) for row in self.rows(schema.leases)}
        reports = {
            "finish": lambda: finish(self.store, lease, seconds=3.0),
            "unusable": lambda: fail(self.store, lease, retryable=False, code=LatentsUnusable.code),
            "broken": lambda: fail(self.store, lease, retryable=True),
            "bad": lambda: fail(self.store, lease, retryable=False),
            "drain": lambda: release(self.store, lease),
            "preempted": lambda: release(self.store, lease, ReleaseCause.PREEMPTED),
            "lost": lambda: release(self.store, lease, ReleaseCause.WORKER_LOST),
        }
        is_live = (lease.job_id, lease.lease_token) in live
        try:
            self.do(reports[how]())
        except LeaseLost:
            assert not is_live
        if not is_live:
            assert self.rows(schema.jobs) == before

    @rule(index=st.integers(0, 3))
    def heartbeat(self, index: int) -> None:
        mine = {row.job_id for row in self.rows(schema.leases) if row.worker_id == self.workers[index]}
        held = [lease for lease in self.leases if lease.job_id in mine]
        self.do(send_heartbeat(self.store, self.workers[index], *held))

    @rule(choice=st.integers(0, 99), act=st.sampled_from(["cancel", "delete", "requeue"]))
    def control(self, choice: int, act: str) -> None:
        if not self.accepted:
            return
        job_id = sorted(self.accepted)[choice % len(self.accepted)]
        acts: dict[str, Callable[[str], Coroutine[Any, Any, object]]] = {
            "cancel": self.store.jobs.cancel,
            "delete": self.store.jobs.delete,
            "requeue": self.store.operations.requeue,
        }
        try:
            self.do(acts[act](job_id))
        except DiffuserveError:
            return
        if act == "delete":
            self.deleted.add(job_id)

    @rule(seconds=st.floats(0.1, 20.0))
    def let_time_pass(self, seconds: float) -> None:
        self.pass_by(seconds)

    @rule()
    def make_room(self) -> None:
        """Have batch jobs put down; what is told of at once is at most one for each urgent job."""
        before = sum(row.is_preempted for row in self.rows(schema.leases))
        ready = [row for row in self.rows(schema.ready) if row.lane.startswith("0")]
        self.do(self.store.housekeeping.make_room())
        told = sum(row.is_preempted for row in self.rows(schema.leases)) - before
        assert told <= len(ready)

    @rule()
    def forget(self) -> None:
        outdated = self.do(self.store.housekeeping.find_outdated(100))
        assert set(outdated) <= self.deleted
        self.do(self.store.housekeeping.forget(outdated))

    @invariant()
    def tables_agree(self) -> None:
        if not hasattr(self, "store"):
            return
        tables = self.do(self.store.database.read(_read_all))
        _check_counters(tables)
        _check_leases(tables)
        _check_logs(tables)

    def teardown(self) -> None:
        """Finish all jobs: none that was accepted may be lost."""
        if not hasattr(self, "store"):
            return
        for _ in range(200):
            self.pass_by(2.0)
            for worker in self.workers:
                for lease in self.do(claim(self.store, worker, 4)):
                    self.do(finish(self.store, lease))
            if all(JobStatus(row.status).is_final for row in self.rows(schema.jobs)):
                break
        jobs = {row.id: JobStatus(row.status) for row in self.rows(schema.jobs)}
        assert all(status.is_final for status in jobs.values()), jobs
        assert self.accepted - self.deleted <= set(jobs)
        assert not self.rows(schema.leases)
        for job_id, status in jobs.items():
            kinds = [event.type for event in self.do(self.store.jobs.events_after(job_id))]
            assert kinds[-1] == status
            assert kinds.count("succeeded") <= 1
            assert kinds.count("denoised") <= 2 + kinds.count("requeued")
            type(self).num_denoised += kinds.count("denoised")
        self.do(self.store.close())
        self.loop.close()

    def pass_by(self, seconds: float) -> None:
        while seconds > 0:
            self.clock.advance(min(seconds, 2.0))
            self.do(self.store.housekeeping.reap("reaper"))
            seconds -= 2.0

    def rows(self, table: sa.Table) -> list[Any]:
        return self.do(self.store.database.rows(sa.select(table).order_by(*table.primary_key.columns)))


def _read_all(connection: sa.Connection) -> _Tables:
    """Read all tables at once: a statement on its own waits longer for its thread than for the database."""
    orders = {table: sa.select(table).order_by(*table.primary_key.columns) for table in _WATCHED}
    return {table: list(connection.execute(statement)) for table, statement in orders.items()}


def _check_counters(tables: _Tables) -> None:
    ready, jobs = tables[schema.ready], tables[schema.jobs]
    lanes = {row.lane: (row.num_ready, row.head_seq) for row in tables[schema.lanes] if row.num_ready}
    counted = Counter(row.lane for row in ready)
    heads = {lane: min(row.seq for row in ready if row.lane == lane) for lane in counted}
    assert lanes == {lane: (count, heads[lane]) for lane, count in counted.items()}
    queued = Counter(row.tenant_id for row in jobs if row.status == "queued")
    assert {row.id: row.num_queued for row in tables[schema.tenants] if row.num_queued} == queued
    waiting = {row.job_id for row in ready} | {row.job_id for row in tables[schema.delayed]}
    assert waiting == {row.id for row in jobs if row.status == "queued"}


def _check_leases(tables: _Tables) -> None:
    """Check that leases are those of running jobs, within the limit."""
    leases, jobs = tables[schema.leases], {row.id: row for row in tables[schema.jobs]}
    assert {row.job_id for row in leases} == {
        job.id for job in jobs.values() if JobStatus(job.status).is_leased
    }
    assert all(jobs[row.job_id].lease_token == row.lease_token for row in leases)
    assert not any(row.latents for row in jobs.values() if JobStatus(row.status).is_final)
    assert max(Counter(row.tenant_id for row in leases).values(), default=0) <= _MAX_RUNNING


def _check_logs(tables: _Tables) -> None:
    """Check that logs have no gap, and only legal changes."""
    for _, log in itertools.groupby(tables[schema.job_events], lambda row: row.job_id):
        rows = list(log)
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
        kinds = [row.type for row in rows]
        assert kinds[0] == "queued"
        assert all(after in _LEGAL[before] for before, after in itertools.pairwise(kinds)), kinds


def _run(machine: type[JobStoreMachine], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            phases=(Phase.explicit, Phase.generate),  # shrinking takes minutes; a run is short enough to read
        ),
    )
    assert machine.num_denoised, "some jobs that lasted were handed over from one worker to another"


def _on_sqlite(migrated: Path, examples: int, steps: int) -> None:
    with TemporaryDirectory() as folder:

        class OnSqlite(JobStoreMachine):
            @property
            def url(self) -> str:  # type: ignore[override]
                return f"sqlite:///{shutil.copy(migrated, Path(folder) / f'{next(_NUMBERS)}.db')}"

        _run(OnSqlite, examples, steps)


def _on_postgresql(server: PostgresServer, migrated: str, examples: int, steps: int) -> None:
    class OnPostgresql(JobStoreMachine):
        @property
        def url(self) -> str:  # type: ignore[override]
            return server.create_database(f"machine_{next(_NUMBERS)}", migrated)

    _run(OnPostgresql, examples, steps)


def test_no_job_is_lost_on_sqlite(migrated_file: Path) -> None:
    _on_sqlite(migrated_file, examples=8, steps=40)


def test_no_job_is_lost_on_postgresql(postgres: PostgresServer, migrated_database: str) -> None:
    _on_postgresql(postgres, migrated_database, examples=5, steps=40)


@pytest.mark.slow
def test_no_job_is_lost_on_sqlite_in_many_runs(migrated_file: Path) -> None:
    _on_sqlite(migrated_file, examples=150, steps=80)


@pytest.mark.slow
def test_no_job_is_lost_on_postgresql_in_many_runs(postgres: PostgresServer, migrated_database: str) -> None:
    _on_postgresql(postgres, migrated_database, examples=100, steps=80)
