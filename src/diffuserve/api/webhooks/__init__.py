"""Delivery of webhooks, and the addresses that it may reach."""
