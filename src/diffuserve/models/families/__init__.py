"""Families of models: one architecture each, and one for every other pipeline of diffusers."""
