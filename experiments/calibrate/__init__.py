"""`specfleet calibrate`: at most three numbers fitted to a user's own results."""
