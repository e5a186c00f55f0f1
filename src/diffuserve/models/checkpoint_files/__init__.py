"""Files of weights as people share them: read lazily, recognized, and made into a model folder once."""
