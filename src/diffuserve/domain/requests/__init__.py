"""Requests: their parameters, input images and samplers."""
