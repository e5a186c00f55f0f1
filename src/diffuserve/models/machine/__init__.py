"""The machine that models run on: its devices, cores, dtypes and products."""
