"""Jobs as they go: followed by clients, measured, logged and traced."""
