"""The output of commands, and how a terminal shows it."""
