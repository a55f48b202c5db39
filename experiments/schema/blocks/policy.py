"""The `serve.draft_policy:` block: how K is chosen while running. Not vLLM's, but for `batch_size`.

Each policy is one small model; `sim/speculation/policies*.py` has what they do.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from specfleet.experiments.schema.blocks.base import (
    MOST_DRAFTS,
    Block,
    Count,
    CountOrNone,
    Drafts,
    Fraction,
    Milliseconds,
)
from specfleet.experiments.schema.blocks.own import refuse_keys
from specfleet.experiments.schema.registry import KINDS


class BatchSize(Block):
    """K by the number of scheduled requests: vLLM's num_speculative_tokens_per_batch_size."""

    schedule: Annotated[tuple[tuple[CountOrNone, CountOrNone, CountOrNone], ...], Field(min_length=1)]
    """(lowest batch, highest batch, K) triples; a gap inherits the K before it."""


class DisableAboveQueue(Block):
    """No drafts while too many requests wait."""

    queue: Count
    """Requests waiting from which drafting stops."""


class Goodput(Block):
    """The K that yields most tokens a second at measured acceptance and known step cost."""

    weight: Fraction = 0.05
    """Of a new verification in the acceptance averages."""


class AdaptiveTiers(Block):
    """SGLang's adaptive steps: average accepted drafts, snapped to tiers with hysteresis."""

    tiers: Annotated[tuple[Drafts, ...], Field(min_length=1)] = (1, 3, 7)
    """Values K can take."""
    smoothing: Fraction = 0.2
    """Of a new batch's mean in the average."""
    warmup: CountOrNone = 10
    """Batches before the first change."""
    interval: Count = 5
    """Batches between changes."""
    down: Annotated[float, Field(ge=0, le=MOST_DRAFTS)] = 0.25
    """How far the average must fall below a tier before K moves down."""
    up: Annotated[float, Field(ge=0, le=MOST_DRAFTS)] = 0.0
    """How far it must rise above one before K moves up."""


class EarlyStop(Block):
    """Stops drafting for a request where its drafter expects the draft to be lost."""

    threshold: Fraction = 0.3
    """Least survival a draft must be expected to have."""


class AcceptanceGate(Block):
    """Turns drafting off for a stream that accepts too little, for a while.

    It pays where some streams accept next to nothing; where they are alike, `goodput` does better.
    """

    window: Count = 16
    """Verifications looked back on."""
    threshold: Fraction = 0.1
    """Least accepted / drafted over the window. A closed stream saves its rows to verify, worth 6 to 14 % of
    its drafts; a higher threshold closes streams that pay."""
    cooldown: Count = 64
    """Steps without drafts after the gate closes."""


class TemperatureGate(Block):
    """No drafts for requests sampled too hot."""

    limit: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Highest temperature that drafts."""


class SloBudget(Block):
    """Drafts go first to requests behind their TPOT target, the rest by expected survival."""

    tpot_ms: Milliseconds
    """Target of each request."""
    budget: Count
    """Drafts of a step, all requests together."""


class Bandit(Block):
    """Learns the best K for each size of batch by trying."""

    exploration: Annotated[float, Field(ge=0, le=1e6)] = 0.3
    """Weight of trying arms seldom tried."""


class Oracle(Block):
    """Drafts exactly what will be accepted, for nothing: a bound of throughput, not a policy one can have."""


class DraftPolicy(Block):
    """How K is chosen while running: exactly one policy, with its parameters. One of your own is a key with
    its name, and a mapping of its constructor's parameters."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict[str, object]]

    batch_size: BatchSize | None = None
    """K by the number of scheduled requests."""
    disable_above_queue: DisableAboveQueue | None = None
    """No drafts while too many requests wait."""
    goodput: Goodput | None = None
    """The K with most tokens a second at measured acceptance."""
    adaptive_tiers: AdaptiveTiers | None = None
    """SGLang's adaptive steps."""
    early_stop: EarlyStop | None = None
    """Per request: no drafts that the drafter expects to be lost."""
    acceptance_gate: AcceptanceGate | None = None
    """Per request: off for a while when too little is accepted."""
    temperature_gate: TemperatureGate | None = None
    """Per request: none when sampled too hot."""
    by_class: Annotated[dict[str, CountOrNone], Field(min_length=1)] | None = None
    """Traffic class -> its K, for life; a class not named has num_speculative_tokens."""
    slo_budget: SloBudget | None = None
    """Per request: a budget that goes first to those behind."""
    bandit: Bandit | None = None
    """Learns K for each size of batch."""
    oracle: Oracle | None = None
    """Reads the future: a bound of throughput."""

    @model_validator(mode="after")
    def _registered(self) -> DraftPolicy:
        known = KINDS["policy"].known
        refuse_keys(self, {name: given for name, given in self.own.items() if name not in known})
        return self

    @property
    def own(self) -> dict[str, dict[str, object]]:
        """Policies that are not shipped, with their parameters."""
        return self.__pydantic_extra__

    @property
    def chosen(self) -> tuple[str, dict[str, object]] | None:
        """The policy given, by name, with its parameters; None unless it is exactly one."""
        blocks = {name: getattr(self, name) for name in type(self).model_fields}
        given = {name: _parameters(block) for name, block in blocks.items() if block is not None} | self.own
        return next(iter(given.items())) if len(given) == 1 else None


def _parameters(block: Block | dict[str, int]) -> dict[str, object]:
    """What a policy is made with."""
    return {"drafts": dict(block)} if isinstance(block, dict) else block.model_dump()
