"""The control plane, with workers that compute nothing."""
