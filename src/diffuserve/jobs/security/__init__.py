"""API keys, signing secrets, and the audit of what filters refused or flagged."""
