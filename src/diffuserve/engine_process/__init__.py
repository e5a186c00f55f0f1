"""The engine process: it owns one model and the device, and talks to its agent alone."""
