"""Step-level continuous batching, the same for every family of models."""
