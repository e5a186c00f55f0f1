"""The engine's options for a load and an objective: found by trials, kept beside the cost fit, applied."""
