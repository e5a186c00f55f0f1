"""Qwen-Image and Qwen-Image-Edit as a family of models."""
