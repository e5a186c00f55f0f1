"""Several ranks: what they exchange, hold and give."""
