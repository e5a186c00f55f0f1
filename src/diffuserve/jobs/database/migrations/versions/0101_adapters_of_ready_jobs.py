"""Ready jobs and the heads of lanes have the digests of their adapters."""

from alembic import op

from diffuserve.jobs.database.columns import text

revision = "0101"
down_revision = "0100"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ready", text("adapters", server_default=""))
    op.add_column("lanes", text("head_adapters", server_default=""))
