"""Noise schedules and the rules by which samplers remove noise."""
