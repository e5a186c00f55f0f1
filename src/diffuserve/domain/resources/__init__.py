"""Resources of the API as its responses have them."""
