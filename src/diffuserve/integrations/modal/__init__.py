"""Modal: an app, and the file that holds it."""
