"""Servers, drivers and doubles that several tests share."""
