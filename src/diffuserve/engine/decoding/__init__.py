"""The decode stage: its queue, and the thread that decodes."""
