"""Benchmarks: run one by `python -m benchmarks NAME`, list them by `python -m benchmarks`."""
