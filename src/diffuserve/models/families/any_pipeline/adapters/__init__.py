"""Adapters of requests on the layers of diffusers' modules."""
