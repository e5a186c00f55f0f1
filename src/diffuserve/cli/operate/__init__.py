"""Commands of operators: what runs, what it costs, who may use it."""
