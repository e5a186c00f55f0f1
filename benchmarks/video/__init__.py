"""Clips, beside diffusers and beside images of other tenants."""
