"""Requests of this server to URLs that clients name."""
