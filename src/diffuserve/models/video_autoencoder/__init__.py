"""The video autoencoder of Wan, which encodes and decodes single images for Qwen-Image."""
