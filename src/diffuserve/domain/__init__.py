"""Values and decisions without torch and without I/O."""
