"""Running jobs: followed by clients, measured, logged and traced."""
