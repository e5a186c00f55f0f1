"""Text encoders that families share."""
