"""The job store: jobs, leases, fairness and retention in a database."""
