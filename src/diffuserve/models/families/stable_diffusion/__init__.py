"""Stable Diffusion 1, 2 and XL as a family of models."""
