"""Batches as clients send them: received, parsed and judged before anything is stored."""
