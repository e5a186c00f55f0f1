"""Images that tenants upload, and the jobs that name them."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("width", sa.BigInteger(), nullable=False),
        sa.Column("height", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("files_by_tenant", "files", ["tenant_id", "id", "size_bytes"])
    op.create_index("files_by_content", "files", ["tenant_id", "sha256"], unique=True)
    op.create_index("files_by_expiry", "files", ["expires_at"])
    op.create_table(
        "job_files",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("file_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "file_id"),
    )
    op.create_index("job_files_by_file", "job_files", ["file_id"])
