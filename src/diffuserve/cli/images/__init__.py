"""Images and clips on this machine: read, written and shown."""
