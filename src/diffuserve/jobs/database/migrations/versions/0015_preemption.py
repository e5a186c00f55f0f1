"""Jobs that make room for more urgent ones."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("num_preempted", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column(
        "leases", sa.Column("is_preempted", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("workers", sa.Column("num_promised", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("workers", sa.Column("promised_at", sa.Double(), nullable=True))
