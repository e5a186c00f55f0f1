"""Triton Inference Server: a model repository, and its model for Triton's Python backend."""
