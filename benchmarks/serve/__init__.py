"""A whole server with its workers, beside the bare engine and beside peers."""
