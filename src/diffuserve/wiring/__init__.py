"""The composition roots, which alone choose among backends."""
