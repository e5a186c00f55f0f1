"""The HTTP client of the control plane, for commands and for workers."""
