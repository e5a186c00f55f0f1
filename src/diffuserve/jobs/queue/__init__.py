"""Jobs on their way in and through the queue: admission, places, changes of state, and idempotency."""
