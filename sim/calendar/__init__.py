"""The fast path: the same run as `Engine` steps, from a calendar of what sequences contribute."""
