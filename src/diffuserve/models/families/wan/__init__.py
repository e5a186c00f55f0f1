"""Wan 2.1 and 2.2 as a family of models."""
