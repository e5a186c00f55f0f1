"""Callers of the API: their keys, sessions, roles and request rates."""
