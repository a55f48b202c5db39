"""Figures of a run, drawn with matplotlib."""
