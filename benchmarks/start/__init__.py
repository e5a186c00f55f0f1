"""Starts of processes, until they answer."""
