"""The doors of clients: jobs, their events, files and results, and what a tenant may know of itself."""
