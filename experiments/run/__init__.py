"""Runs: every point simulated, the results folder, and what is read back from it."""
