"""Encoders of images: CLIP's and SigLIP's."""
