"""The bus on which control planes tell each other of changes: in memory, or over Valkey."""
