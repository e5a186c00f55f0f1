"""Adapter files as people share them: recognized by their header, planned, and read into matrices."""
