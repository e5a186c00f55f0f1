"""The image autoencoder of FLUX.1, SDXL and Stable Diffusion."""
