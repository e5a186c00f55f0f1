"""The store as operators and tenants look at it: searches, states, demand, history and usage."""
