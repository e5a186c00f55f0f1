"""Webhooks in the job store: an outbox of messages, and their receivers."""
