"""The exit codes of a worker, besides 0 after a drain."""

ENGINE_LOST = 1
"""The engine died too often in a row."""
CANNOT_START = 2
"""The engine cannot start, or the control plane refuses the worker; no restart would help."""
