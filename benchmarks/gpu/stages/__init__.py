"""Stages of minutes that ask a GPU what it alone can tell; `scripts/gpu_day.py` plays them."""
