"""JSON APIs and buckets of other services."""
