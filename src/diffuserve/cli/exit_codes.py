"""Exit codes of the commands."""

FAILED = 1
BAD_INPUT = 2  # of a person; nothing was started, and trying again does not help
INTERRUPTED = 130  # what shells report for Ctrl-C
