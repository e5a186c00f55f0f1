"""Commands that draw: on this machine, or by a server."""
