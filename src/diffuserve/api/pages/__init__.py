"""Pages of the API's documentation."""
