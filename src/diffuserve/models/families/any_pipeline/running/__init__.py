"""Runs of a pipeline's own code, which stop at their models' calls and share passes."""
