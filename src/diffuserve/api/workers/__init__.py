"""Routes for workers: registration, claims, and reports on the jobs that they hold."""
