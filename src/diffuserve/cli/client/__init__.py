"""Commands of a server's clients, and their connection to it."""
