"""Errors of a running simulation. Each says what stood still and what to do about it."""

from __future__ import annotations


class SimulationError(Exception):
    """Base of all errors raised while simulating."""


class Stall(SimulationError):  # noqa: N818 - the domain's word
    """Work is left and nothing will ever happen: a diagnosis instead of a hang."""
