"""Rules about several values at once, a file a subject."""
