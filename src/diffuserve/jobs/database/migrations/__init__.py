"""Alembic's migrations of the job store's schema."""
