"""Webhooks: the door where clients register endpoints, and delivery to these."""
