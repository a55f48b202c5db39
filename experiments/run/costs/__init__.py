"""What a run costs: joules and dollars."""
