"""Metrics, traces and the log."""
