"""One trace of jobs and lost machines on fleets of Ray, of Slurm and, simulated, of Kubernetes."""
