"""Workers: what they report, whether they are ready, and what they are told."""
