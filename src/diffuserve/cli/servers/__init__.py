"""Commands that serve: control planes, workers, and both on one machine."""
