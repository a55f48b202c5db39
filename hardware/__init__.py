"""What an engine step costs and what fits in memory: knows no request and no clock."""
