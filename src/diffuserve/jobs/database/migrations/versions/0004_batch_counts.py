"""Counts of a batch's items by status."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_STATUSES = ("queued", "running", "canceling", "succeeded", "failed", "canceled", "expired")


def upgrade() -> None:
    for status in _STATUSES:
        column = sa.Column(f"num_{status}", sa.BigInteger(), server_default="0", nullable=False)
        op.add_column("batches", column)
    counted = ", ".join(f"num_{status} = {_counted(status)}" for status in _STATUSES)
    op.execute(f"UPDATE batches SET {counted}")  # noqa: S608 (our own names)


def _counted(status: str) -> str:
    return f"(SELECT count(*) FROM jobs WHERE jobs.batch_id = batches.id AND jobs.status = '{status}')"  # noqa: S608 (our own names)
