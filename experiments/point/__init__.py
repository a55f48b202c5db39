"""From one point of the grid to a scenario and its requests."""
