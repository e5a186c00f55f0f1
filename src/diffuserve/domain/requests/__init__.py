"""Requests: what they may ask for."""
