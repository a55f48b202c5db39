"""`specfleet measure`: a user's GPU timed, constants written."""
