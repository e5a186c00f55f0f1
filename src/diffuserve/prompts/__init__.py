"""Prompts before they are stored: cleaned, and expanded by a language model."""
