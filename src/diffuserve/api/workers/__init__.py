"""The doors of workers: registration, claims, and reports on the jobs that they hold."""
