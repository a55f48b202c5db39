"""Specfleet."""
