"""Recorded traffic: one reader a format, each saying what it read, kept and dropped."""
