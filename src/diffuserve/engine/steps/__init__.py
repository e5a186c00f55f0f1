"""The denoise stage: what a step is made of, and what it leads to."""
