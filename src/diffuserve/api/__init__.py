"""The REST API of the control plane: a room for each who knocks, and below them what all doors share."""
