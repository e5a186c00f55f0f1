"""An index of the jobs that generate clips, which are listed by themselves."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    is_clip = sa.text("kind = 'video.generate'")
    op.create_index(
        "clips_by_tenant", "jobs", ["tenant_id", "id"], sqlite_where=is_clip, postgresql_where=is_clip
    )
