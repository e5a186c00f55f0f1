"""What a run measured, for programs, for a terminal and for a browser."""
