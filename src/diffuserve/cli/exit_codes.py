"""Exit codes of the commands."""

from diffuserve import stop_signals

FAILED = 1
BAD_INPUT = 2  # of a person; nothing was started, and trying again does not help
INTERRUPTED = stop_signals.INTERRUPTED
