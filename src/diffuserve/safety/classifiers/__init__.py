"""Models that give a text or an image scores."""
