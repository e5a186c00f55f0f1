"""Seconds and bytes that work takes: the cost model, its fit, and memory."""
