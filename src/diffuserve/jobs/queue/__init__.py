"""The queue of jobs: admission, places, changes of state, and idempotency."""
