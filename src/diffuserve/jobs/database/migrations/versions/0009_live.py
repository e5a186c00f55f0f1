"""Jobs whose first clip can be watched while it is drawn."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("live", sa.Boolean(), server_default=sa.false(), nullable=False))
