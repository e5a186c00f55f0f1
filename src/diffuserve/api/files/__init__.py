"""Files of requests and of finished jobs: taken in, signed and served."""
