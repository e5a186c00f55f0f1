"""Uploaded images in the job store."""
