"""Fleets and floods that are simulated with the product's own policies."""
