"""What a run costs, in words."""
