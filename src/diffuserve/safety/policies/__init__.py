"""What a policy says of a text: its words and patterns, and how a text is read for them."""
