"""Models: the contracts of families, their folders, weights and devices."""
