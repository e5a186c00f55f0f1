"""The worker's registration, and its reports about itself."""
