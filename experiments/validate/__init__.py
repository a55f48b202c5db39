"""`specfleet validate`: measured points read, simulated and scored."""
