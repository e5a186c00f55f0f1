"""Exit codes of the commands."""

from diffuserve import stop_signals

FAILED = 1
BAD_INPUT = 2  # from the user; nothing was started, and a retry does not help
INTERRUPTED = stop_signals.INTERRUPTED
