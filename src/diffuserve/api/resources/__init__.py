"""Resources of the API, built from what the store holds."""
