"""Pipelines: the contract with the engine, and what those of all families share."""
