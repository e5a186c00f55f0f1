"""Weights that stay on the host until they are used."""
