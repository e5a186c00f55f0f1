"""The agent: the process that takes jobs from the control plane and keeps engine processes running."""
