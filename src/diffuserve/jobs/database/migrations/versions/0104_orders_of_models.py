"""Workers are given orders of models."""

from alembic import op

from diffuserve.jobs.database.columns import text

revision = "0104"
down_revision = "0103"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", text("model_order", null=True))
