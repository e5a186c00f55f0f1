"""The door of programs that were written for AUTOMATIC1111."""
