"""Workers: the agent, and the engine process that it keeps running."""
