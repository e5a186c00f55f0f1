"""Jobs that are drawn with weights that are not quantized."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("exact", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("lanes", sa.Column("is_exact", sa.Boolean(), nullable=False, server_default=sa.false()))
