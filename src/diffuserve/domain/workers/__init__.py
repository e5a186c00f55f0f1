"""Workers: their reports, their readiness, and the commands to them."""
