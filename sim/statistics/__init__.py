"""What may be concluded from simulated runs: steady states, intervals, pairs, stopping, verdicts."""
