"""The audit of the database and the results folder at the end of a chaos run."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.chaos.bucket import Digests
from diffuserve.domain.jobs.job import FINAL_STATUSES, JobStatus
from diffuserve.domain.workers.worker import ReleaseCause
from diffuserve.jobs.database import schema

_IDLE_WITH_LOCK = sa.text(
    "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted "
    "AND state = 'idle in transaction' AND application_name LIKE :name"
)
jobs, events, leases, workers = schema.jobs, schema.job_events, schema.leases, schema.workers


@dataclass(frozen=True)
class Holding:
    """A lease that a worker held when it was killed or suspended."""

    job_id: str
    lease_token: int


@dataclass(frozen=True, kw_only=True)
class AuditCounts:
    """Counts of a run. `lost` to `untrue`, and `crossed`, must be 0.

    `lost`: accepted jobs without exactly one final status and one final event. `doubled`: jobs published
    more than once, or stored but never accepted. `damaged`: results that differ from the files in the
    folder of the last lease. `gaps`: event logs with gaps. `untrue`: jobs whose final status differs
    from the one that their client received. `stuck`: leases and queued rows left over. `crossed`: jobs
    stored for another tenant than the one that submitted them. `handed_over`: jobs that one worker denoised
    and another one decoded; `phased` succeeded and could be. `redone`: jobs that were denoised again though
    their latents were there; a death may cost one phase of its jobs. `redrawn`: images and
    latents that an engine finished and another attempt made again, although the worker was neither killed nor
    suspended: for an outage, that is. `unexplained`: attempts that ended so without an outcome, also those
    whose lease never reached its worker.
    """

    accepted: int
    statuses: Mapping[str, int]
    failed_by_code: Mapping[str, int]
    lost: int
    doubled: int
    damaged: int
    gaps: int
    stuck: int
    untrue: int
    crossed: int
    handed_over: int
    phased: int
    redone: int
    redrawn: int
    unexplained: int
    interrupted: int
    attempts: int
    orphan_folders: int

    @property
    def is_clean(self) -> bool:
        damage = (self.lost, self.doubled, self.damaged, self.gaps, self.stuck, self.untrue, self.redone)
        return not any(damage)


class Records:
    """Reads the database, without the job store."""

    def __init__(self, url: str) -> None:
        self._engine: AsyncEngine = create_async_engine(url, pool_pre_ping=True, hide_parameters=True)

    async def close(self) -> None:
        await self._engine.dispose()

    async def rows(self, statement: sa.Executable) -> Sequence[sa.Row[Any]]:
        async with self._engine.connect() as connection:
            return (await connection.execute(statement)).all()

    async def ids_of(self, worker_name: str) -> list[str]:
        """Return the ids of all workers of that name, of which all but the last are dead.

        Which one is the last nothing tells: the clock may have been set back since the others registered.
        """
        return [
            row.id for row in await self.rows(sa.select(workers.c.id).where(workers.c.name == worker_name))
        ]

    async def held_by(self, worker_ids: Sequence[str]) -> list[Holding]:
        """Return the leases of these workers."""
        held = sa.select(leases.c.job_id, leases.c.lease_token).where(leases.c.worker_id.in_(worker_ids))
        return [Holding(row.job_id, row.lease_token) for row in await self.rows(held)]

    async def live(self, held: Sequence[Holding]) -> list[Holding]:
        """Return those of the leases that are still valid."""
        mine = leases.c.job_id.in_([lease.job_id for lease in held])
        rows = await self.rows(sa.select(leases.c.job_id, leases.c.lease_token).where(mine))
        now = {(row.job_id, row.lease_token) for row in rows}
        return [lease for lease in held if (lease.job_id, lease.lease_token) in now]

    async def num_running(self) -> int:
        return len(await self.rows(sa.select(leases.c.job_id)))

    async def holds_lock(self, pid: int) -> bool:
        """Return whether the process idles in a transaction of PostgreSQL that has the write lock."""
        return bool((await self.rows(_IDLE_WITH_LOCK.bindparams(name=f"diffuserve {pid}@%")))[0][0])

    async def last_tokens(self) -> dict[str, int]:
        """Return the token of the last lease of each job that has ended."""
        ended = sa.select(jobs.c.id, jobs.c.lease_token).where(jobs.c.status.in_(FINAL_STATUSES))
        return {row.id: row.lease_token for row in await self.rows(ended)}

    async def num_accepted(self) -> int:
        return int((await self.rows(sa.select(sa.func.count()).select_from(jobs)))[0][0])

    async def num_unfinished(self) -> int:
        unfinished = sa.select(sa.func.count()).where(jobs.c.status.not_in(FINAL_STATUSES))
        return int((await self.rows(unfinished))[0][0])


def explained_by(*leases: Sequence[Holding]) -> Mapping[str, set[int]]:
    """Return the lease tokens that faults of their workers explain, by job."""
    tokens: defaultdict[str, set[int]] = defaultdict(set)
    for lease in itertools.chain(*leases):
        tokens[lease.job_id].add(lease.lease_token)
    return tokens


def num_redrawn(ledger: Iterable[str], explained: Mapping[str, set[int]]) -> int:
    """Count what engines finished once more than was needed, and no fault of a worker explains.

    Each line of the ledger is an attempt, with its phase if it is only one of them.
    """
    drawn: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for line in ledger:
        attempt, _, phase = line.partition(" ")
        job_id, _, token = attempt.rpartition("-")
        drawn[job_id, phase].add(int(token))
    left = (tokens - explained.get(job_id, set()) for (job_id, _), tokens in drawn.items())
    return sum(max(len(tokens) - 1, 0) for tokens in left)


async def audit(  # noqa: PLR0913 (what there is to compare)
    records: Records,
    files: Digests,
    told: Mapping[str, JobStatus | None],
    owners: Mapping[str, str],
    hurt: Sequence[Holding],
    explained: Mapping[str, set[int]],
    ledger: Iterable[str],
) -> AuditCounts:
    """Compare database and files with the final statuses that clients received, and their tenants, by job.

    `hurt` are leases that faults ended, and `explained` the tokens of all that they may have, by job.
    """
    stored = {row.id: row for row in await records.rows(sa.select(jobs))}
    log = await _event_types(records)
    lost = [job_id for job_id in told if not _has_one_end(stored.get(job_id), log.get(job_id, []))]
    published_twice = [job_id for job_id, types in log.items() if types.count(JobStatus.SUCCEEDED) > 1]
    succeeded = [row for row in stored.values() if row.status == JobStatus.SUCCEEDED]
    return AuditCounts(
        accepted=len(told),
        statuses=dict(Counter(row.status for row in stored.values())),
        failed_by_code=dict(_error_codes(stored.values())),
        lost=len(lost),
        doubled=len(published_twice) + len(stored.keys() - told.keys()),
        damaged=sum(not _is_whole(row, files) for row in succeeded),
        gaps=await _num_gaps(records),
        stuck=await _num_left(records),
        untrue=sum(
            status is not None and job_id in stored and stored[job_id].status != status
            for job_id, status in told.items()
        ),
        crossed=sum(row.tenant_id != owners.get(row.id, row.tenant_id) for row in stored.values()),
        phased=sum(row.model == "null" for row in succeeded),
        handed_over=sum("denoised" in types for types in log.values()),
        redone=sum(types.count("denoised") > 1 for types in log.values()),
        redrawn=num_redrawn(ledger, explained),
        unexplained=await _num_unexplained(records, explained),
        interrupted=sum(stored[lease.job_id].lease_token > lease.lease_token for lease in hurt),
        attempts=sum(row.attempt for row in stored.values()),
        orphan_folders=_num_orphans(files, succeeded),
    )


def _error_codes(rows: Iterable[sa.Row[Any]]) -> Counter[str]:
    """Count the errors of failed jobs; a succeeded job may still have an earlier attempt's error."""
    return Counter(orjson.loads(row.error)["code"] for row in rows if row.status == JobStatus.FAILED)


def _has_one_end(row: sa.Row[Any] | None, types: Sequence[str]) -> bool:
    ends = [status for status in types if status in FINAL_STATUSES]
    return row is not None and ends == [row.status] and types[-1] == row.status


def _is_whole(row: sa.Row[Any], files: Digests) -> bool:
    artifacts = orjson.loads(row.result)["artifacts"]
    folder = f"{row.id}/{row.lease_token}"
    return bool(artifacts) and all(
        files.get(f"{folder}/{each['name']}") == each["sha256"] for each in artifacts
    )


async def _num_unexplained(records: Records, explained: Mapping[str, set[int]]) -> int:
    """Count the attempts that ended without an outcome and that no fault of a worker explains."""
    by_choice = (ReleaseCause.DRAIN, ReleaseCause.BYSTANDER, ReleaseCause.PREEMPTED, ReleaseCause.INTERRUPTED)
    lost: Counter[str] = Counter()
    ends = sa.select(events.c.job_id, events.c.data).where(events.c.type.in_(("requeued", JobStatus.FAILED)))
    for row in await records.rows(ends):
        lost[row.job_id] += orjson.loads(row.data).get("cause") not in by_choice
    return sum(max(count - len(explained.get(job_id, ())), 0) for job_id, count in lost.items())


async def _event_types(records: Records) -> dict[str, list[str]]:
    log: dict[str, list[str]] = {}
    statement = sa.select(events.c.job_id, events.c.type).order_by(events.c.job_id, events.c.seq)
    for row in await records.rows(statement):
        log.setdefault(row.job_id, []).append(row.type)
    return log


async def _num_gaps(records: Records) -> int:
    """Count the event logs whose numbers are not 1, 2, 3 … up to the job's own count."""
    first, last, count = sa.func.min(events.c.seq), sa.func.max(events.c.seq), sa.func.count()
    counted = (
        sa.select(events.c.job_id, first.label("first"), last.label("last"), count.label("count"))
        .group_by(events.c.job_id)
        .subquery()
    )
    same = sa.and_(
        counted.c.first == 1, counted.c.last == counted.c.count, counted.c.count == jobs.c.num_events
    )
    gaps = sa.select(jobs.c.id).outerjoin(counted, counted.c.job_id == jobs.c.id)
    return len(await records.rows(gaps.where(sa.not_(sa.func.coalesce(same, sa.false())))))


async def _num_left(records: Records) -> int:
    """Count leases and queued jobs that are left; empty lanes may remain for a while."""
    tables = (leases, schema.ready, schema.delayed)
    counts = [sa.select(sa.func.count()).select_from(table) for table in tables]
    counts.append(sa.select(sa.func.count()).where(schema.lanes.c.num_ready != 0))
    return sum([(await records.rows(count))[0][0] for count in counts])


def _num_orphans(files: Digests, succeeded: Sequence[sa.Row[Any]]) -> int:
    """Count the folders of failed attempts; the reaper deletes them when they are an hour old."""
    wanted = {(row.id, str(row.lease_token)) for row in succeeded}
    folders = {tuple(key.split("/")[:2]) for key in files}
    return len(folders - wanted)
