"""Lanes that look at every row in every step: what a row drafts depends on the others, or on the time."""
