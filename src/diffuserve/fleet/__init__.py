"""Fleets of workers on the cluster managers that people have: Ray and Slurm place, replace and end them."""
