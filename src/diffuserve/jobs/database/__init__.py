"""The database: its schema and migrations, connections, commands and the writer that commits them."""
