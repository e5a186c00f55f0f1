"""Values that clients asked for where their jobs have the nearest allowed ones."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("asked", sa.Text(), nullable=True))
