"""Workloads, sides that take turns, and result files, which benchmarks share."""
