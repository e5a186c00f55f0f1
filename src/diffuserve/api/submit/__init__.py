"""The submission of jobs: what a client may ask for, and the way from there to a stored job."""
