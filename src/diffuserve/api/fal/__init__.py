"""The door of programs that were written for fal."""
