"""Model folders: found by name, fetched, and checked before any weight is read."""
