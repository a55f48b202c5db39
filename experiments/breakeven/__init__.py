"""`specfleet breakeven`: the acceptance at which the gain ends, at each load."""
