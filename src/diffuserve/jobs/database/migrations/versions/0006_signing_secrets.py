"""Moves the secrets that sign into one table: those of webhooks, and that of URLs, which now rotates too."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "signing_secrets",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("owner", "secret"),
    )
    op.execute(
        "INSERT INTO signing_secrets (owner, secret, created_at, expires_at) "
        "SELECT 'webhooks/' || tenant_id, secret, created_at, expires_at FROM webhook_secrets"
    )
    op.execute(
        "INSERT INTO signing_secrets (owner, secret, created_at) "
        "SELECT name, value, 0 FROM secrets WHERE name = 'result-urls'"
    )
    op.drop_table("webhook_secrets")
    op.drop_table("secrets")
