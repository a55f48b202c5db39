"""The `acceptance:` block: what the drafter achieves on this traffic.

Four quantities go by one name in the field. Here each has its own key, and exactly one is given.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from specfleet.experiments.schema.blocks.base import MOST_DRAFTS, Block, Drafts, Factor, Fraction, Tokens
from specfleet.experiments.schema.blocks.own import ProcessName, refuse_keys

QUANTITIES = (
    "by_position",
    "conditional_acceptance",
    "acceptance_length",
    "draft_acceptance_rate",
    "replay",
    "profile",
    "process",
)
"""The keys of which a process has exactly one."""

DEFAULT_CONCENTRATION = 18.0
"""Spread of a Llama-70B EAGLE-3 chain on code edits; requests always differ unless `.inf` is asked for."""

SEEN_CONCENTRATIONS = (DEFAULT_CONCENTRATION, math.inf)
"""The spreads that served runs of model drafters were found to have: from Llama-70B on code edits (18) over
Qwen3-32B on MT-Bench (50) to Qwen3-32B on code edits cut at 200 tokens (200 and more, all alike)."""


Multiplier: TypeAlias = Annotated[float, Field(le=1e3)]
_Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
_Concentration: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=True)]


class LowAtom(Block):
    """A share of requests on which the drafter does badly, apart from the bulk."""

    weight: Annotated[float, Field(ge=0, lt=1)]
    """Share of requests."""
    low: Annotated[float, Field(ge=0, le=1)]
    """Their conditional acceptance is uniform from here ..."""
    high: Annotated[float, Field(ge=0, le=1)]
    """... to here."""


class Burst(Block):
    """Good and bad rounds within a request: an AR(1) process on the logit of conditional acceptance."""

    rho: Annotated[float, Field(ge=0, lt=1)]
    """Correlation from one round to the next."""
    sigma: Annotated[float, Field(gt=0, le=100)]
    """Standard deviation on the logit."""


class HotCold(Block):
    """Copying in runs (ngram): a hot step finds a draft and mostly accepts it, a cold one finds none."""

    stay: Annotated[float, Field(ge=0, lt=1)]
    """P(a step is hot, the one before was)."""
    enter: Annotated[float, Field(ge=0, lt=1)]
    """P(a step is hot, the one before was cold)."""
    accept_hot: Fraction
    """P(the first draft of a hot step is accepted)."""
    propose_cold: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of cold steps that find a draft all the same, of which nothing is accepted."""


class Overlap(Block):
    """A synthetic logit model of target and draft, which says what a temperature does to acceptance."""

    rule: Literal["argmax", "sampled"] = "argmax"
    """`argmax`: the draft is its model's best word (vLLM's greedy drafts); `sampled`: it is drawn."""
    sharpness: Annotated[float, Field(gt=0, le=100)] = 2.15
    """Zipf exponent of the target at temperature 1."""
    noise: Annotated[float, Field(ge=0, le=100)] = 0.92
    """Standard deviation of the draft's logits about the target's."""
    top_p: Fraction = 1.0
    """Share of the target's probability that sampling keeps."""
    measured_at_temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    """Temperature at which the figures of this block were measured."""


class MeasuredOn(Block):
    """What an acceptance was measured on. Where the file runs something else, that is said."""

    model: str | None = None
    """The target's name."""
    method: str | None = None
    """Of drafting, as in `speculative_config`."""
    dataset: str | None = None
    """The prompts, such as sharegpt, instructcoder or mt-bench."""


class Process(Block):
    """How many drafts of a round are accepted, for one traffic class. Beside `process`, the name of one of
    your own, stand its constructor's parameters."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, object]

    source: str = "not stated"
    """Where the numbers come from."""
    measured_on: MeasuredOn | None = None
    """Model, method and data set of the measurement."""
    by_position: Annotated[tuple[_Share, ...], Field(min_length=1)] | None = None
    """P(first i drafts all accepted), i = 1, 2, ..: never increasing; the first K count. Beyond them the run
    predicts, by a law of the drafter's family, and says so; with `measured_at_k` below them too."""
    conditional_acceptance: _Share | None = None
    """P(a draft is accepted, given that those before it were)."""
    acceptance_length: Annotated[float, Field(ge=1, le=1 + MOST_DRAFTS)] | None = None
    """Mean tokens a round, the target's own included, at `measured_at_k`."""
    draft_acceptance_rate: Fraction | None = None
    """Accepted drafts / drafts, at `measured_at_k`."""
    replay: str | None = None
    """A file of recorded requests (JSON lines or CSV), relative to the experiment file: a list a request,
    at place p the drafts accepted if drafting started with p output tokens written; null or an empty cell
    where nothing is proposed. Requests take them in turn, by their number."""
    replay_counts: Literal["drafts", "tokens"] = "drafts"
    """What `replay` counts: accepted drafts, or tokens of the round, one more."""
    profile: str | None = None
    """A measured process by name."""
    process: ProcessName | None = None
    """A process of your own by name; its parameters stand beside it."""
    measured_at_k: Drafts | None = None
    """K of the measurement; the experiment's own K if it has only one. At another K the run predicts."""
    scale: Factor = 1.0
    """Factor on the conditional acceptance of every draft, whatever was measured: 0.8 is a fifth less."""
    concentration: _Concentration = DEFAULT_CONCENTRATION
    """Spread between requests: small is wide, `.inf` makes all alike."""
    concentration_range: tuple[_Concentration, _Concentration] | None = None
    """From the widest to the narrowest spread that it may be: P99 figures are a band over it. What was seen
    in measurements, [18, .inf], where no `concentration` is given."""
    low_atom: LowAtom | None = None
    decay: Fraction = 1.0
    """Factor on the conditional acceptance from one position to the next; 1 where `by_position` is given."""
    burst: Burst | None = None
    """Good and bad rounds within a request."""
    hot_cold: HotCold | None = None
    """Copying in runs (ngram). The figures above then count every sampling step, found draft or not."""
    context_multiplier: tuple[tuple[float, Multiplier], ...] | None = None
    """[tokens of context, factor on the conditional acceptance] pairs."""
    context_knee: Tokens | None = None
    """Positions a head was trained on: beyond, acceptance falls as measured on one EAGLE-3 head."""
    temperature_multiplier: tuple[tuple[float, Multiplier], ...] | None = None
    """[temperature, factor on the conditional acceptance] pairs; 1 at the temperature of the measurement."""
    turn_multiplier: tuple[tuple[float, Multiplier], ...] | None = None
    """[turn of the session from 0, factor on the conditional acceptance] pairs, linear in between."""
    overlap: Overlap | None = None
    """A logit model in place of `temperature_multiplier`."""
    length_rank_correlation: Annotated[float, Field(gt=-1, lt=1)] = 0.0
    """Spearman's, of a request's acceptance and its output length."""
    proposal_probability: Fraction | None = None
    """Share of sampling steps that find a match (ngram)."""
    proposal_persistence: Annotated[float, Field(ge=0, lt=1)] | None = None
    """P(a step finds a match, the one before did); steps are independent if left out (ngram)."""

    @model_validator(mode="after")
    def _parameters(self) -> Process:
        if self.process is None:
            refuse_keys(self, self.own)
        return self

    @property
    def own(self) -> dict[str, object]:
        """Parameters of a process that is not shipped."""
        return self.__pydantic_extra__

    @property
    def spread_unknown(self) -> bool:
        """Whether how much requests differ is neither given nor recorded."""
        given = self.model_fields_set & {"concentration", "concentration_range"}
        return not given and self.replay is None and self.process is None

    def at_concentration(self, concentration: float | None) -> Process:
        """The same with this spread, given; as it is where there is none."""
        if concentration is None:
            return self
        return self.model_copy(update={"concentration": concentration, "concentration_range": None})

    @property
    def all_alike(self) -> bool:
        """No spread between requests: right means, wrong tails."""
        return math.isinf(self.concentration)


def _one_or_classes(value: object) -> str:
    """Whether a mapping is one process, or traffic classes with one process each."""
    if isinstance(value, dict) and isinstance(value.get("process"), str):
        return "<process>"
    if isinstance(value, dict) and value and not value.keys() & (Process.model_fields.keys() - {"process"}):
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
