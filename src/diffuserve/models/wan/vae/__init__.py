"""The video autoencoder of Wan."""
