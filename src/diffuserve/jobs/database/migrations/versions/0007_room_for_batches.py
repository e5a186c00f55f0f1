"""Room that a batch reserves in the queue for items that are not stored yet."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_HAS_ROOM = sa.text("reserved_jobs > 0")


def upgrade() -> None:
    count = sa.Column("reserved_jobs", sa.BigInteger(), server_default="0", nullable=False)
    op.add_column("batches", count)
    op.add_column("batches", sa.Column("reserved_seconds", sa.Double(), server_default="0", nullable=False))
    op.add_column("batches", sa.Column("stored_at", sa.Double(), nullable=True))
    op.execute(
        "UPDATE batches SET reserved_jobs = num_items - num_stored, stored_at = created_at "
        "WHERE num_stored < num_items AND finished_at IS NULL AND NOT is_canceled"
    )
    op.create_index(
        "batches_to_store", "batches", ["tenant_id"], sqlite_where=_HAS_ROOM, postgresql_where=_HAS_ROOM
    )
