"""Decisions of the job store: pure functions of values, without SQL, clock and I/O."""
