"""Jobs, their batches, files and webhooks, from the queue to their end."""
