"""Z-Image and Z-Image-Turbo."""
