"""The way of jobs out of the engine: files, clips, latents and checkpoints."""
