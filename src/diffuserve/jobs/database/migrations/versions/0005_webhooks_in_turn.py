"""Tenant and host of each webhook delivery, so that senders take tenants in turn."""

from urllib.parse import urlsplit

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_IS_WAITING = sa.text("next_at IS NOT NULL")


def upgrade() -> None:
    for name in ("tenant_id", "host"):
        op.add_column("webhook_deliveries", sa.Column(name, sa.Text(), server_default="", nullable=False))
    _fill()
    op.drop_index("webhook_deliveries_due", "webhook_deliveries")
    op.create_index(
        "webhook_deliveries_due",
        "webhook_deliveries",
        ["tenant_id", "next_at", "id"],
        sqlite_where=_IS_WAITING,
        postgresql_where=_IS_WAITING,
    )
    op.create_index("webhook_endpoints_by_tenant", "webhook_endpoints", ["tenant_id", "id"])


def _fill() -> None:
    connection = op.get_bind()
    fill = sa.text(
        "UPDATE webhook_deliveries SET tenant_id = :tenant_id, host = :host WHERE endpoint_id = :id"
    )
    for row in connection.execute(sa.text("SELECT id, tenant_id, url FROM webhook_endpoints")).all():
        host = (urlsplit(row.url).hostname or "").rstrip(".")
        connection.execute(fill, {"tenant_id": row.tenant_id, "host": host, "id": row.id})
