"""Filters of prompts and images."""
