"""Layers and ways of computing them that families share."""
