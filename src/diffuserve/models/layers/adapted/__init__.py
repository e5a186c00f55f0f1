"""Layers with low-rank adapters of requests."""
