"""Simulations of large fleets, spread over processes."""
