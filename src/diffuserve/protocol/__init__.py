"""Messages, the crash record and the configuration that an agent and its engine processes exchange."""
