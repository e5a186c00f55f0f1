"""Reads of the store that many requests need, made once for all who ask together."""
