"""Background tasks: work that is due by time, also after outages and steps of the clock."""
