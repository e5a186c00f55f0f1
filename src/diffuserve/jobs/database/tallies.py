"""The table of tallies: jobs and attempts that ended per twenty seconds, counted as they end.

So all control planes agree on the counts, and readers need not read the jobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import sqlalchemy as sa

from diffuserve.jobs.database import count_tables
from diffuserve.jobs.database.connections import Transaction, upsert
from diffuserve.jobs.database.tally import TallyCount, TallyKind

tallies = count_tables.tallies

BUCKET_SECONDS = 20
MINUTE_SECONDS = 60.0
WINDOW_SECONDS = 300.0
_MEMORY_SECONDS = 900.0

WindowCounts = Mapping[TallyKind, Mapping[str, TallyCount]]
"""Counts by kind and key."""


@dataclass(frozen=True)
class Tallies:
    """Counts of the last five minutes, and how many jobs ended by status in the last of them.

    `minute_seconds` is the time that the latter cover.
    """

    window: WindowCounts
    minute: Mapping[str, int]
    minute_seconds: float

    def of(self, kind: TallyKind) -> Mapping[str, TallyCount]:
        """Return the counts of one kind by key."""
        return self.window.get(kind, {})


def save(transaction: Transaction) -> None:
    """Write the counts of the transaction."""
    counts = transaction.tally.counts
    if not counts:
        return
    started_at = _bucket_start(transaction.now)
    rows = [
        {"started_at": started_at, "kind": kind, "key": key, "num": count.num, "seconds": count.seconds}
        for (kind, key), count in counts.items()
    ]
    transaction.execute(_add(transaction.dialect), rows)


@cache
def _add(dialect: str) -> sa.Executable:
    insert = upsert(tallies, dialect)
    added = {name: tallies.c[name] + insert.excluded[name] for name in ("num", "seconds")}
    return insert.on_conflict_do_update(index_elements=["started_at", "kind", "key"], set_=added)


def forget(transaction: Transaction) -> None:
    """Delete counts that are no longer read."""
    is_old = tallies.c.started_at < transaction.now - _MEMORY_SECONDS
    transaction.execute(sa.delete(tallies).where(is_old))


def read(connection: sa.Connection, now: float) -> Tallies:
    """Return the counts of the last minutes before `now`."""
    window_start, minute_start = _bucket_start(now - WINDOW_SECONDS), _bucket_start(now - MINUTE_SECONDS)
    recent = sa.case((tallies.c.started_at >= minute_start, tallies.c.num), else_=0)
    sums = sa.select(
        tallies.c.kind,
        tallies.c.key,
        sa.func.sum(tallies.c.num),
        sa.func.sum(tallies.c.seconds),
        sa.func.sum(recent),
    )
    is_inside = tallies.c.started_at >= window_start
    window: dict[TallyKind, dict[str, TallyCount]] = {kind: {} for kind in TallyKind}
    minute: dict[str, int] = {}
    grouped = sums.where(is_inside).group_by(tallies.c.kind, tallies.c.key)
    for kind, key, num, seconds, num_recent in connection.execute(grouped):
        window[TallyKind(kind)][key] = TallyCount(int(num), float(seconds))
        if kind == TallyKind.ENDED:
            minute[key] = int(num_recent)
    return Tallies(window, minute, now - minute_start)


def _bucket_start(at: float) -> int:
    return int(at // BUCKET_SECONDS) * BUCKET_SECONDS
