"""The tables of what is counted over time: ends of attempts, use, accepted work, states of the server."""

import sqlalchemy as sa

from diffuserve.jobs.database.columns import HOT, count, double, text

metadata = sa.MetaData()

# Jobs and attempts that ended in the twenty seconds from `started_at` on, counted as they end.
tallies = sa.Table(
    "tallies",
    metadata,
    sa.Column("started_at", sa.BigInteger, primary_key=True, autoincrement=False),
    text("kind", primary_key=True),
    text("key", primary_key=True),
    count("num"),
    double("seconds", default="0"),
    postgresql_with=HOT,
)

# Attempts that ended, and how long workers were registered, by UTC's day.
_AMOUNTS = ("seconds", "cost")
usage = sa.Table(
    "usage",
    metadata,
    *(text(name, primary_key=True) for name in ("day", "tenant_id", "model", "kind", "outcome")),
    *map(count, ("num_attempts", "num_images")),
    *(double(name, default="0") for name in _AMOUNTS),
    postgresql_with=HOT,
)
worker_time = sa.Table(
    "worker_time",
    metadata,
    *(text(name, primary_key=True) for name in ("day", "kind")),
    *(double(name, default="0") for name in _AMOUNTS),
    postgresql_with=HOT,
)

# Predicted device-seconds of the jobs accepted in the five minutes from `started_at` on.
accepted_work = sa.Table(
    "accepted_work",
    metadata,
    sa.Column("started_at", sa.BigInteger, primary_key=True, autoincrement=False),
    text("model", primary_key=True),
    double("seconds", default="0"),
    postgresql_with=HOT,
)

# State of the server each ten seconds of the last hour, as JSON for charts.
operations_history = sa.Table(
    "operations_history",
    metadata,
    sa.Column("started_at", sa.BigInteger, primary_key=True, autoincrement=False),
    text("point"),
)
