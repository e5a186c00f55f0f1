"""The model of an engine process: described, fetched, prepared and loaded."""
