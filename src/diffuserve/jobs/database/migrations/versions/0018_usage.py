"""Tables of what attempts took, and how long workers were there, by day."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_HOT = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.01, "autovacuum_vacuum_threshold": 200}


def upgrade() -> None:
    op.create_table(
        "usage",
        *_keys("day", "tenant_id", "model", "kind", "outcome"),
        sa.Column("num_attempts", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("num_images", sa.BigInteger(), nullable=False, server_default="0"),
        *_sums("seconds", "cost"),
        postgresql_with=_HOT,
    )
    op.create_table("worker_time", *_keys("day", "kind"), *_sums("seconds", "cost"), postgresql_with=_HOT)


def _keys(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), primary_key=True, nullable=False) for name in names]


def _sums(*names: str) -> list[sa.Column[float]]:
    return [sa.Column(name, sa.Double(), nullable=False, server_default="0") for name in names]
