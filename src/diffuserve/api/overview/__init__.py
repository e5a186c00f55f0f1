"""The server as its operators watch it: snapshots, their changes, and the last hour."""
