"""What families of packed image transformers share: pipeline, input images, latents, compiled blocks."""
