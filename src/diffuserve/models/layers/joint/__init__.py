"""Joint attention over packed rows: what transformers of text and image tokens are made of."""
