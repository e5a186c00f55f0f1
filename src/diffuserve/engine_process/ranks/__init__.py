"""Several engine processes that generate each image together: their launcher, and their lockstep."""
