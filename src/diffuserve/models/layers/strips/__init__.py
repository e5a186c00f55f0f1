"""Images computed in strips of rows, on one rank or on several."""
