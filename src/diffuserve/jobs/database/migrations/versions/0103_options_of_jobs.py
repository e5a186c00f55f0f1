"""Jobs have options, how they are kept, tried and placed; webhooks have forms."""

import sqlalchemy as sa
from alembic import op

from diffuserve.jobs.database.columns import double, flag, number, text

revision = "0103"
down_revision = "0102"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", double("retention_seconds", null=True))
    op.add_column("jobs", flag("forget_delivered"))
    op.add_column("jobs", double("forget_at", null=True))
    op.add_column("jobs", number("max_attempts", null=True))
    for name in ("fallback", "requested_model", "worker_hint"):
        op.add_column("jobs", text(name, null=True))
    is_set = sa.text("forget_at IS NOT NULL")
    op.create_index("jobs_to_forget", "jobs", ["forget_at"], sqlite_where=is_set, postgresql_where=is_set)
    op.add_column("ready", text("hint", server_default=""))
    op.add_column("lanes", text("head_hint", server_default=""))
    op.add_column("webhook_deliveries", text("form", server_default=""))
