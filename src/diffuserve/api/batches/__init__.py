"""The door of batches: received, parsed and judged before anything is stored."""
