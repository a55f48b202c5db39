"""Those who decode, as columns: steps like the one before are worked out for all of them together."""
