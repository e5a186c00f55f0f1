"""Work accepted by model and five minutes, from which autoscaling predicts."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_HOT = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.01, "autovacuum_vacuum_threshold": 200}


def upgrade() -> None:
    op.create_table(
        "accepted_work",
        sa.Column("started_at", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("model", sa.Text(), primary_key=True, nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False, server_default="0"),
        postgresql_with=_HOT,
    )
