"""The submission of jobs: request bodies, their checks, and the stored job."""
