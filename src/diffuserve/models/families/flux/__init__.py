"""FLUX.1 as a family of models."""
