"""Requests in the engine: their state and phases, admission, checkpoints, and swapping out."""
