"""The way of leased jobs through the agent: claimed, given to an engine, and given up."""
