"""Leased jobs in the agent: claimed, sent to an engine, and finished or released."""
