"""Processes beside a server that judge, and the turns in which tenants use them."""
