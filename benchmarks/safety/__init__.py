"""Costs of judging prompts and images."""
