"""The state that the agent's parts share: the jobs held, and the room for more."""
