"""Batches in the job store."""
