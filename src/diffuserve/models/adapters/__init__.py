"""Adapters of requests: read from files, and kept in a device's memory."""
