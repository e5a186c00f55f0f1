"""The way of a request to its route: the outermost layer, and the reading of bodies."""
