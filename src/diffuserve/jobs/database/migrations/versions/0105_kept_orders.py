"""Orders of models that were carried out are kept, for workers that start again."""

from alembic import op

from diffuserve.jobs.database.columns import double, text

revision = "0105"
down_revision = "0104"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", text("orders_to_come", null=True))
    op.create_table("kept_orders", text("worker_name", primary_key=True), text("orders"), double("kept_at"))
