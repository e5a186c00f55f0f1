"""Leases: claims that grant them, room that is made for urgent ones, and the ends of attempts."""
