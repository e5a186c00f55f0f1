"""The table of accepted work: device-seconds by model, counted by five minutes for weeks."""

from collections import defaultdict
from collections.abc import Sequence
from functools import cache

import sqlalchemy as sa

from diffuserve.jobs.database import count_tables
from diffuserve.jobs.database.connections import Transaction, upsert
from diffuserve.jobs.policy.scaling import HOUR, WEEK, WEEKS, bucket_of
from diffuserve.jobs.records import JobRecord

accepted_work = count_tables.accepted_work

_MEMORY_SECONDS = WEEKS * WEEK + HOUR


def count(transaction: Transaction, records: Sequence[JobRecord]) -> None:
    """Count the predicted device-seconds of newly accepted jobs, by model."""
    seconds: dict[str, float] = defaultdict(float)
    for record in records:
        seconds[record.model] += record.work_seconds
    started_at = bucket_of(transaction.now)
    rows = [
        {"started_at": started_at, "model": model, "seconds": seconds[model]} for model in sorted(seconds)
    ]
    transaction.execute(_add(transaction.dialect), rows)


@cache
def _add(dialect: str) -> sa.Executable:
    insert = upsert(accepted_work, dialect)
    return insert.on_conflict_do_update(
        index_elements=["started_at", "model"],
        set_={"seconds": accepted_work.c.seconds + insert.excluded.seconds},
    )


def forget(transaction: Transaction) -> None:
    """Delete counts that no prediction reads any more."""
    is_old = accepted_work.c.started_at < transaction.now - _MEMORY_SECONDS
    transaction.execute(sa.delete(accepted_work).where(is_old))
