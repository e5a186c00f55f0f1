"""Background tasks: what time demands, after outages and steps of the clock as well."""
