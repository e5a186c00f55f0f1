"""Batches from files, and files that are no images."""

import sqlalchemy as sa
from alembic import op

from diffuserve.jobs.database.columns import count, double, number, partial_index, text

revision = "0102"
down_revision = "0101"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("files", text("purpose", server_default="vision"))
    op.drop_index("files_by_content", "files")
    is_image = sa.text("purpose = 'vision'")
    op.create_index(
        "files_by_content",
        "files",
        ["tenant_id", "sha256"],
        unique=True,
        sqlite_where=is_image,
        postgresql_where=is_image,
    )
    op.create_table(
        "file_batches",
        text("id", primary_key=True),
        *map(text, ("tenant_id", "endpoint", "input_file_id", "completion_window", "base_url", "status")),
        *(text(name, null=True) for name in ("metadata", "webhook", "ending", "model", "errors", "tokens")),
        *(text(name, null=True) for name in ("output_file_id", "error_file_id")),
        *map(count, ("num_lines", "num_completed", "num_failed", "num_refused")),
        *(double(name) for name in ("output_seconds", "created_at", "expires_at", "next_at")),
        *(
            double(name, null=True)
            for name in ("cost_seconds", "in_progress_at", "finalizing_at", "cancelling_at", "ended_at")
        ),
        sa.Index("file_batches_by_tenant", "tenant_id", "id"),
        partial_index("file_batches_due", "next_at", where="ended_at IS NULL"),
    )
    op.create_table(
        "refused_lines",
        text("batch_id", primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        number("status"),
        text("body"),
    )
