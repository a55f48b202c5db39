"""Drafts that are not K in each round: who decides them."""
