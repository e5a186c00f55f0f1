"""The exit codes of a worker, besides 0 after a drain, and those of engines in words."""

import signal

ENGINE_LOST = 1
"""The engine died too often in a row."""
CANNOT_START = 2
"""The engine cannot start, or the control plane refuses the worker; no restart would help."""


def describe(code: int) -> str:
    """Describe how a process ended by its exit code, which is negative for a signal."""
    if code >= 0:
        return f"exit code {code}; its own message is above"
    name = signal.Signals(-code).name
    if -code == signal.SIGKILL:
        return f"killed by {name}, as the kernel does when memory runs out"
    return f"killed by {name}"
