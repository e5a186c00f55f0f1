"""Adapters in a store: named for all or for one tenant, kept by the content of their files."""
