"""Any pipeline of diffusers, by its own `__call__`: it stops at its models' passes, which requests share."""
