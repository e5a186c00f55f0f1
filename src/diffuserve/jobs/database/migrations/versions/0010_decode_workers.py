"""Jobs of two phases: finished latents, which workers of another role may decode."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table, column in (
        ("jobs", sa.Column("decode_seconds", sa.Double(), nullable=False, server_default="0")),
        ("jobs", sa.Column("latent_bytes", sa.BigInteger(), nullable=False, server_default="0")),
        ("jobs", sa.Column("latents", sa.Text(), nullable=True)),
        ("jobs", sa.Column("num_latents_lost", sa.BigInteger(), nullable=False, server_default="0")),
        ("lanes", sa.Column("is_decode", sa.Boolean(), nullable=False, server_default=sa.false())),
        ("leases", sa.Column("until", sa.Text(), nullable=False, server_default="files")),
        ("workers", sa.Column("role", sa.Text(), nullable=False, server_default="all")),
    ):
        op.add_column(table, column)
