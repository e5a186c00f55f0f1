"""Loops of the agent."""
