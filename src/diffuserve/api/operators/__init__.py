"""The doors of operators and their monitoring: health, metrics, sizes of pools, and the server as a whole."""
