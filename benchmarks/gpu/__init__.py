"""A GPU and FLUX.1's size, measured where there is one, and counted where there is none."""
