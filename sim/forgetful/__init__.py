"""Runs whose requests are forgotten: what they need beside the lanes."""
