"""Weights: read from files, prepared, quantized on the disk, and identified by hashes."""
