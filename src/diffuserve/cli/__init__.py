"""The command line: a room for each kind of command, and what commands share."""
