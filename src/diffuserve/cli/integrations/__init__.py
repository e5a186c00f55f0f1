"""Commands that put our engine inside other servers."""
