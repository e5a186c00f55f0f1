"""Request rates of tenants: in memory, or over Valkey."""
