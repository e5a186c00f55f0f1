"""Ranks that generate an image together."""
