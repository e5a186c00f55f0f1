"""Workers and the models that they offer."""
