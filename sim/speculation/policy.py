"""What a policy is: asked for drafts when a step is scheduled, told what came of them.

It sees counts, queue lengths, measured acceptance, the drafter's own confidence and the requests'
temperature; never what will be accepted and never how long an output will be.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import Protocol

from sim.sequence import Batch

Plan = int | list[int]
"""Drafts to propose after a step: one number for all rows, or one a row."""


class Policy(Protocol):
    """Chooses drafts. One object serves one engine and keeps its own state."""

    def plan(self, batch: Batch, waiting: int, now: float) -> Plan:
        """Returns the drafts to propose after `batch`, scheduled at `now` while `waiting` requests queue."""
        ...

    def observe(self, batch: Batch, sampled: Rows[int], seconds: float) -> None:
        """Learns the tokens each row of a committed batch sampled, and how long the step took."""
        ...


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy by name with its parameters, as an experiment states it.

    Args:
        name: a key of `POLICIES`.
        parameters: keyword arguments of that class.
    """

    name: str
    parameters: Mapping[str, object] = field(default_factory=dict)


class Silent:
    """A policy that learns nothing."""

    def observe(self, batch: Batch, sampled: Rows[int], seconds: float) -> None:
        """Nothing to learn."""
