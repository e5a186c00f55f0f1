"""What attempts may be charged: when leases were granted, and what of a job's checkpoint is charged."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leases", sa.Column("granted_at", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("kept_seconds", sa.Double(), nullable=False, server_default="0"))
