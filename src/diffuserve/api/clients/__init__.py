"""Routes for clients: jobs, their events, files and results, and a tenant's own data."""
