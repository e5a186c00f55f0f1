"""Middleware, and the reading of request bodies before they reach a route."""
