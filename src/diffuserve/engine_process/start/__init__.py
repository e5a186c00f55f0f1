"""Programs that an agent starts: an engine process, the zygote, and the reader of descriptions."""
