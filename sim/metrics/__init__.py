"""What a run's figures are, each defined once, over whole columns and over portions that are forgotten."""
