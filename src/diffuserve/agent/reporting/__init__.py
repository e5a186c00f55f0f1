"""Reports of jobs to the control plane: progress, parts, checkpoints, results and spans."""
