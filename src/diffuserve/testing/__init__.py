"""Test doubles for tests of this project and of its users."""
