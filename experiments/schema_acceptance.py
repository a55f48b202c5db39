"""The `acceptance:` block: what the drafter achieves on this traffic.

Four quantities go by one name in the field. Here each has its own key, and exactly one is given.
"""

from __future__ import annotations

import math
from typing import Annotated, TypeAlias

from pydantic import Discriminator, Field, Tag

from experiments.schema_base import Block, Count, Fraction

QUANTITIES = (
    "by_position",
    "conditional_acceptance",
    "acceptance_length",
    "draft_acceptance_rate",
    "profile",
)
"""The keys of which a process has exactly one."""

DEFAULT_CONCENTRATION = 18.0
"""Spread of a Llama-70B EAGLE-3 chain on code edits; requests always differ unless `.inf` is asked for."""


class LowAtom(Block):
    """A share of requests on which the drafter does badly, apart from the bulk."""

    weight: Annotated[float, Field(ge=0, lt=1)]
    """Share of requests."""
    low: Annotated[float, Field(ge=0, le=1)]
    """Their conditional acceptance is uniform from here ..."""
    high: Annotated[float, Field(ge=0, le=1)]
    """... to here."""


class Process(Block):
    """How many drafts of a round are accepted, for one traffic class."""

    source: str = "not stated"
    """Where the numbers come from."""
    by_position: Annotated[tuple[Fraction, ...], Field(min_length=1)] | None = None
    """P(first i drafts all accepted), i = 1, 2, ..: never increasing; the first K count."""
    conditional_acceptance: Fraction | None = None
    """P(a draft is accepted, given that those before it were)."""
    acceptance_length: Annotated[float, Field(ge=1)] | None = None
    """Mean tokens a round, the target's own included, at `measured_at_k`."""
    draft_acceptance_rate: Fraction | None = None
    """Accepted drafts / drafts, at `measured_at_k`."""
    profile: str | None = None
    """A measured process by name."""
    measured_at_k: Count | None = None
    """K of the measurement; the experiment's own K if it has only one."""
    concentration: Annotated[float, Field(gt=0, allow_inf_nan=True)] = DEFAULT_CONCENTRATION
    """Spread between requests: small is wide, `.inf` makes all alike."""
    low_atom: LowAtom | None = None
    decay: Fraction = 1.0
    """Factor on the conditional acceptance from one position to the next; 1 where `by_position` is given."""
    context_multiplier: tuple[tuple[float, float], ...] | None = None
    """[tokens of context, factor on the conditional acceptance] pairs."""
    proposal_probability: Fraction | None = None
    """Share of sampling steps that find a match (ngram)."""
    proposal_persistence: Annotated[float, Field(ge=0, lt=1)] | None = None
    """P(a step finds a match, the one before did); steps are independent if left out (ngram)."""

    @property
    def all_alike(self) -> bool:
        """No spread between requests: right means, wrong tails."""
        return math.isinf(self.concentration)


def _one_or_classes(value: object) -> str:
    """Whether a mapping is one process, or traffic classes with one process each."""
    if isinstance(value, dict) and value and not value.keys() & Process.model_fields.keys():
        by_class = all(isinstance(child, dict | Process) for child in value.values())
        return "<classes>" if by_class else "<process>"
    return "<process>"


Acceptance: TypeAlias = Annotated[
    Annotated[Process, Tag("<process>")] | Annotated[dict[str, Process], Tag("<classes>")],
    Discriminator(_one_or_classes),
]
"""One process, or a mapping of traffic class to process."""


def processes(acceptance: Process | dict[str, Process] | None) -> dict[str, Process]:
    """Traffic class -> process; the class of a lone process is ""."""
    if acceptance is None:
        return {}
    return acceptance if isinstance(acceptance, dict) else {"": acceptance}
