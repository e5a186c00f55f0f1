"""Output of the engine process: files, clips, latents and checkpoints."""
