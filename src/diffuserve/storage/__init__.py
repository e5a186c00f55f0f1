"""Artifact stores, which keep finished files."""
