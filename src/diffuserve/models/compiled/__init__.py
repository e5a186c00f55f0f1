"""Halves of blocks that are compiled ahead of time."""
