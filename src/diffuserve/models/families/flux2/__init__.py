"""FLUX.2 as a family of models."""
