"""The search for jobs, newest first: each call looks at a bounded part of them, and says where to go on.

No filter has an index of its own, which every submission would pay for. A batch has one, and jobs that a
worker holds are found by their leases; any other search reads the tenant's jobs in their order.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson
import sqlalchemy as sa

from diffuserve.domain.jobs.job import VIDEO_GENERATE, Job, JobStatus
from diffuserve.jobs.database import queries, schema
from diffuserve.jobs.database.connections import Database

jobs, leases = schema.jobs, schema.leases

ROWS_BY_COLUMNS = 20_000
"""Jobs that one search looks at by their columns alone."""

ROWS_BY_PROMPT = 5_000
"""Jobs whose prompts one search reads, and items of a batch that it looks at."""

_ROWS_AT_ONCE = 1_000  # prompts in one statement: matching them keeps the event loop for some milliseconds
_LEASED = frozenset(status for status in JobStatus if status.is_leased)


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """The jobs that are looked for; what is left out matches every job.

    All `words` occur in the prompt, in whatever case. `prompt` is the whole prompt, to the letter.
    """

    tenant_id: str | None = None
    statuses: Collection[JobStatus] = ()
    kind: str | None = None
    model: str | None = None
    batch_id: str | None = None
    words: tuple[str, ...] = ()
    prompt: str | None = None

    @property
    def reads_prompts(self) -> bool:
        """True if a job's columns do not tell whether it matches."""
        return bool(self.words) or self.prompt is not None

    @cached_property
    def _folded_words(self) -> frozenset[str]:
        return frozenset(word.casefold() for word in self.words)

    def matches(self, prompt: str) -> bool:
        """Return whether a job with this prompt is looked for."""
        folded = prompt.casefold()
        return self.prompt in (None, prompt) and all(word in folded for word in self._folded_words)


@dataclass(frozen=True)
class FoundJobs:
    """Jobs that match, newest first; more may be older than the job `next`, none if it is `None`."""

    jobs: tuple[Job, ...]
    next: str | None


async def search(database: Database, wanted: JobFilter, after: str | None, limit: int) -> FoundJobs:
    """Return at most `limit` jobs that are older than the job `after`, and maybe fewer, though more match."""
    found: list[str] = []
    for size in _sizes_of_parts(wanted):
        end = None if size is None else await _end_of_part(database, wanted, after, size)
        found += await _matching(database, wanted, (after, end), limit + 1 - len(found))
        if len(found) > limit:
            return FoundJobs(await _read(database, found[:limit]), found[limit - 1])
        if end is None:
            return FoundJobs(await _read(database, found), None)
        after = end
    return FoundJobs(await _read(database, found), after)


def _sizes_of_parts(wanted: JobFilter) -> Sequence[int | None]:
    """Return how many jobs each statement looks at; `None` stands for all where an index has no others."""
    if wanted.reads_prompts or (wanted.batch_id is not None and len(wanted.statuses) != 1):
        return [_ROWS_AT_ONCE] * (ROWS_BY_PROMPT // _ROWS_AT_ONCE)
    is_selected = wanted.statuses or wanted.model or (wanted.kind and not _has_index(wanted))
    is_short = wanted.batch_id is not None or _is_held(wanted) or not is_selected
    return [None if is_short else ROWS_BY_COLUMNS]


def _has_index(wanted: JobFilter) -> bool:
    """Return whether an index has the jobs of this kind."""
    return wanted.kind == VIDEO_GENERATE and wanted.tenant_id is not None


def _is_held(wanted: JobFilter) -> bool:
    """Return whether only jobs are looked for that a worker holds."""
    return bool(wanted.statuses) and _LEASED.issuperset(wanted.statuses)


def _conditions_of_index(wanted: JobFilter) -> list[sa.ColumnElement[bool]]:
    """Return what an index answers."""
    if wanted.batch_id is not None:
        return [jobs.c.batch_id == wanted.batch_id]
    if _is_held(wanted):
        return [jobs.c.id.in_(sa.select(leases.c.job_id))]
    conditions = [] if wanted.tenant_id is None else [jobs.c.tenant_id == wanted.tenant_id]
    if _has_index(wanted):  # a literal, not a parameter, so that the index on one kind can be used
        conditions.append(jobs.c.kind == sa.literal(wanted.kind, literal_execute=True))
    return conditions


def _conditions(wanted: JobFilter) -> list[sa.ColumnElement[bool]]:
    """Return all that columns tell."""
    conditions = [*_conditions_of_index(wanted), sa.not_(jobs.c.is_erased)]
    if wanted.tenant_id is not None and (wanted.batch_id is not None or _is_held(wanted)):
        # An expression, since the tenant's index would be chosen for the column, and knows neither of these.
        conditions.append(jobs.c.tenant_id.concat("") == wanted.tenant_id)
    if wanted.statuses:
        conditions.append(jobs.c.status.in_(list(wanted.statuses)))
    if wanted.model is not None:
        conditions.append(jobs.c.model == wanted.model)
    if wanted.kind is not None and not _has_index(wanted):
        conditions.append(jobs.c.kind == wanted.kind)
    return conditions


async def _end_of_part(database: Database, wanted: JobFilter, after: str | None, size: int) -> str | None:
    """Return the last job of the next `size` ones, by the index alone; `None` if there are fewer."""
    statement = sa.select(jobs.c.id).where(*_conditions_of_index(wanted), *_between(after, None))
    rows = await database.rows(statement.order_by(jobs.c.id.desc()).offset(size - 1).limit(1))
    return rows[0].id if rows else None


async def _matching(
    database: Database, wanted: JobFilter, part: tuple[str | None, str | None], limit: int
) -> list[str]:
    """Return the first ids of a part that match."""
    columns = (jobs.c.id, jobs.c.input) if wanted.reads_prompts else (jobs.c.id,)
    statement = sa.select(*columns).where(*_conditions(wanted), *_between(*part)).order_by(jobs.c.id.desc())
    if not wanted.reads_prompts:
        return [row.id for row in await database.rows(statement.limit(limit))]
    matching = [row.id for row in await database.rows(statement) if wanted.matches(_prompt_in(row))]
    return matching[:limit]


def _between(after: str | None, end: str | None) -> list[sa.ColumnElement[bool]]:
    newest = [] if after is None else [jobs.c.id < after]
    return newest if end is None else [*newest, jobs.c.id >= end]


def _prompt_in(row: sa.Row[Any]) -> str:
    return str(orjson.loads(row.input).get("prompt", ""))


async def _read(database: Database, job_ids: list[str]) -> tuple[Job, ...]:
    rows = await queries.rows_of(database, queries.JOBS_BY_ID, job_ids)
    found = {row.id: queries.job_in(row) for row in rows}
    return tuple(found[job_id] for job_id in job_ids if job_id in found)
