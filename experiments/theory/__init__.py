"""`specfleet theory`: closed forms as tables and figures."""
