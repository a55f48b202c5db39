"""The `workload:` block, spelled as in `vllm bench serve`."""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from specfleet.experiments.schema.blocks.acceptance import Process
from specfleet.experiments.schema.blocks.arrivals import Arrivals
from specfleet.experiments.schema.blocks.base import (
    RATES_PER_S,
    Block,
    Count,
    CountOrNone,
    Fraction,
    Rate,
    Tokens,
)
from specfleet.experiments.schema.blocks.lengths import Lengths
from specfleet.experiments.schema.blocks.own import TraceFormatName
from specfleet.experiments.schema.blocks.patience import Patience
from specfleet.experiments.schema.blocks.plan import Slo
from specfleet.experiments.schema.blocks.sessions import Pause, Sessions, SessionsOfClass
from specfleet.experiments.schema.blocks.tracefile import Trace, TraceReading
from specfleet.workloads.rates import RateCurve

NUM_PROMPTS = 1000
"""Requests of a benchmark, as `vllm bench serve --num-prompts`."""


class PerConcurrency(Block):
    """A number of requests that grows with the load, so that every point is long enough to settle."""

    per_concurrency: Count
    """Requests for each of `max_concurrency`."""
    min: CountOrNone = 0
    """At least this many."""


def _number_or_mapping(value: object) -> str:
    """Which of the two forms of a count a value has."""
    return "<mapping>" if isinstance(value, dict | PerConcurrency) else "<number>"


_Counted: TypeAlias = Annotated[PerConcurrency, Tag("<mapping>")]
Requests: TypeAlias = Annotated[
    Annotated[Count, Tag("<number>")] | _Counted, Discriminator(_number_or_mapping)
]
Warmups: TypeAlias = Annotated[
    Annotated[CountOrNone, Tag("<number>")] | _Counted, Discriminator(_number_or_mapping)
]


class Prefix(Block):
    """Tokens shared by requests, put in front of every prompt (vLLM's `--random-prefix-len`)."""

    tokens: Tokens
    """Length of a shared prefix."""
    groups: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Different prefixes, each request has one of them."""


class Phase(Block):
    """A stretch of requests with its own rate and class."""

    num_prompts: Count
    """Requests."""
    request_rate: Rate | None = None
    """Requests/s; workload.request_rate if left out."""
    traffic_class: str = "default"
    """Traffic class, as in `acceptance:`."""


class TrafficClass(Block):
    """One class of a mix: how much there is of it, and what a workload says, for its requests alone. What is
    left out is as in the workload; lengths with their rank correlation go together."""

    share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Of all requests, which come in one stream; 0 leaves the class out."""
    request_rate: Annotated[float, Field(ge=0, le=RATES_PER_S[1])] | None = None
    """Requests/s of a stream of its own, in place of a share; 0 leaves the class out. Beside
    workload.request_rate the classes' rates are proportions of that. Turns of sessions are requests."""
    burstiness: Annotated[float, Field(ge=0.05, le=1e6)] | None = None
    """Gamma shape of the gaps of its own stream."""
    cv: Annotated[float, Field(ge=0, le=4.4)] | None = None
    """Coefficient of variation of the same gaps, in place of burstiness."""
    preset: str | None = None
    """Lengths by name."""
    input_len: Tokens | None = None
    """Tokens of every prompt."""
    output_len: Tokens | None = None
    """Tokens of every output."""
    input: Lengths | None = None
    """Distribution of the prompt's tokens."""
    output: Lengths | None = None
    """Distribution of the output's tokens."""
    rank_correlation: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Spearman's, of prompt and output; the preset's own, or 0, if left out."""
    trace: Trace | None = None
    """A trace. With neither share nor request_rate its rows come at their own times, a stream of its own;
    else their lengths are drawn, prompt and output of a row together."""
    trace_format: TraceFormatName | None = None
    """As its keys say, if left out."""
    speed: Annotated[float, Field(ge=1e-3, le=1e6)] | None = None
    """How much faster than it was recorded a trace with its own times is replayed."""
    limit: Count | None = None
    """Rows of the trace to use, from its start."""
    on_too_long: Literal["error", "drop"] | None = None
    """What to do with rows that exceed max_model_len; error if left out."""
    max_tokens: Tokens | None = None
    """Output limit every request states; the longest output possible if left out."""
    output_cap: Tokens | None = None
    """Longer outputs are cut to this many tokens."""
    ignore_eos: bool | None = None
    """Every request states exactly the output it writes."""
    prefix: Prefix | None = None
    """Tokens shared by requests of this class alone."""
    sessions: SessionsOfClass | None = None
    """Its requests are turns; `none` makes them single ones where workload.sessions is given."""
    think_time_s: Pause | None = None
    """Seconds that a user of a closed loop lets pass before a request, or a session, of this class."""
    patience: Patience | None = None
    """How long its clients wait."""
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """Of its sampling."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    """Lower runs first, as in vLLM with scheduling_policy: priority."""
    acceptance: Process | None = None
    """What the drafter achieves on it; the same as a process of its name in `acceptance:`."""
    slo: Slo | None = None
    """Its limits in place of the file's `slo:`."""


LENGTHS = ("preset", "input_len", "output_len", "input", "output", "trace")
"""Keys that say where lengths come from."""


def _share_or_class(value: object) -> str:
    """Which of the two forms an entry of a mix has."""
    return "<mapping>" if isinstance(value, dict | TrafficClass) else "<number>"


_OfMix: TypeAlias = Annotated[
    Annotated[Fraction, Tag("<number>")] | Annotated[TrafficClass, Tag("<mapping>")],
    Discriminator(_share_or_class),
]


class Workload(Block):
    """What is asked: lengths from exactly one of a preset, a trace, or input and output."""

    preset: str | None = None
    """Lengths by name; arrivals come from the keys below."""
    input_len: Tokens | None = None
    """Tokens of every prompt."""
    output_len: Tokens | None = None
    """Tokens of every output."""
    input: Lengths | None = None
    """Distribution of the prompt's tokens."""
    output: Lengths | None = None
    """Distribution of the output's tokens."""
    rank_correlation: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Spearman's, of prompt and output; the preset's own, or 0, if left out."""
    trace: Trace | None = None
    """A trace file, relative to the experiment file, or a file and how it is read."""
    trace_format: TraceFormatName | None = None
    """As its keys say, if left out."""
    speed: Annotated[float, Field(ge=1e-3, le=1e6)] = 1.0
    """How much faster than it was recorded a trace is replayed."""
    limit: Count | None = None
    """Rows of the trace to use, from its start."""
    on_too_long: Literal["error", "drop"] = "error"
    """What to do with rows that exceed max_model_len."""
    max_concurrency: Count | None = None
    """Most requests in flight; with request_rate .inf this is a closed loop."""
    request_rate: Rate | None = None
    """Requests/s; .inf offers all at once. If left out: the trace's own times, or .inf."""
    burstiness: Annotated[float, Field(ge=0.05, le=1e6)] = 1.0
    """Gamma shape of the gaps: 1 is Poisson, less is burstier."""
    cv: Annotated[float, Field(ge=0, le=4.4)] | None = None
    """Coefficient of variation of the gaps, in place of burstiness: 1 is Poisson, more burstier, 0 even."""
    arrivals: Arrivals | None = None
    num_prompts: Requests | None = None
    """Requests that count. If left out: the whole trace; 1000 of a burst that comes all at once, or where
    figures alone are kept; else as many as `run` asks for."""
    num_warmups: Warmups | None = None
    """Requests simulated first and not counted. If left out: none; in a closed loop that goes on as `run`
    asks, 2 for each of max_concurrency, so that all starting at once does not count."""
    max_tokens: Tokens | None = None
    """Output limit every request states; the longest output possible if left out."""
    output_cap: Tokens | None = None
    """Longer outputs are cut to this many tokens."""
    ignore_eos: bool = False
    """Every request states exactly the output it writes, as `--ignore-eos` makes it."""
    mix: Annotated[dict[str, _OfMix], Field(min_length=2)] | None = None
    """Traffic class -> share, or what it has of its own; `acceptance:` may have a process a class. Results
    are given by class too."""
    phases: Annotated[tuple[Phase, ...], Field(min_length=1)] | None = None
    """Traffic that changes: one stretch after another, in place of num_prompts and mix. Warm-ups are its
    first requests."""
    prefix: Prefix | None = None
    sessions: Sessions | None = None
    think_time_s: Pause | None = None
    """Seconds from an answer to the next request of the same user, where `max_concurrency` are users; between
    `sessions`, to the next session."""
    patience: Patience | None = None
    """How long clients wait for an answer, and whether they send again; left out, as long as it takes."""
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0

    @property
    def trace_file(self) -> str | None:
        """The file of the trace; None without one."""
        return self.trace.file if isinstance(self.trace, TraceReading) else self.trace

    @property
    def trace_asked(self) -> dict[str, object]:
        """How the trace is read, by the keywords of its reader."""
        own = self.trace.asked if isinstance(self.trace, TraceReading) else {}
        return {**own, "limit": self.limit, "max_tokens": self.max_tokens}

    @property
    def goes_on(self) -> bool:
        """Whether it lasts as long as `run` says: a load that goes on, and no number of requests."""
        rate = self.request_rate or self.rate_of_classes or math.inf
        load = self.max_concurrency is not None or rate < math.inf
        recorded = self.trace is not None or bool(self.replayed)
        return load and self.num_prompts is None and not recorded and not self.changes

    @property
    def gap_shape(self) -> float:
        """Gamma shape of the gaps: `burstiness`, or 1 / `cv`^2; inf is evenly spaced."""
        if self.cv is None:
            return self.burstiness
        return 1.0 / self.cv**2 if self.cv > 0 else math.inf

    @property
    def changes(self) -> bool:
        """Whether its rate changes while a run lasts, by phases or by a law."""
        return self.phases is not None or self.arrivals is not None

    @property
    def curve(self) -> RateCurve | None:
        """The rate over time, where `arrivals` says that it changes."""
        return self.arrivals.curve(self.request_rate) if self.arrivals and self.request_rate else None

    @property
    def requests_of_span(self) -> int:
        """The requests of a rate that changes, where their number is not given."""
        assert self.arrivals and self.curve, "asked of a rate that changes"
        return max(round(self.curve.expected(self.arrivals.span_s)), 1)

    @property
    def classes(self) -> dict[str, TrafficClass]:
        """Traffic classes that differ in more than their name, bare shares written out; else none."""
        mix = self.mix or {}
        if not any(isinstance(each, TrafficClass) for each in mix.values()):
            return {}
        return {
            name: each if isinstance(each, TrafficClass) else TrafficClass(share=each)
            for name, each in mix.items()
        }

    @property
    def replayed(self) -> list[str]:
        """Classes whose requests come at the own times of a trace."""
        said = self.classes.items()
        return [
            name
            for name, one in said
            if one.trace is not None and one.share is None and one.request_rate is None
        ]

    @property
    def alone(self) -> bool:
        """Whether classes are built each by itself: some are sessions or recorded, or think by themselves."""
        own = any(one.think_time_s is not None for one in self.classes.values())
        return bool(self.classes) and (own or self.has_sessions or bool(self.replayed))

    @property
    def has_sessions(self) -> bool:
        """Whether some requests are turns of sessions."""
        names = self.classes
        return any(self.of_class(name).in_sessions for name in names) if names else self.in_sessions

    @property
    def in_sessions(self) -> bool:
        """Whether requests are turns, drawn or recorded."""
        recorded = isinstance(self.trace, TraceReading) and self.trace.turns == "after_answer"
        return self.sessions is not None or recorded

    @property
    def thinks(self) -> bool:
        """Whether users pause before a request, or a session."""
        return self.think_time_s is not None or any(one.think_time_s for one in self.classes.values())

    @property
    def rate_of_classes(self) -> float | None:
        """Requests/s of classes that each have a stream of their own; None where there are none."""
        rates = [each.request_rate for each in self.classes.values() if each.request_rate is not None]
        return sum(rates) if rates else None

    def of_class(self, name: str) -> Workload:
        """What is asked of one class: its own keys, and the workload's where it has none."""
        mine = self.classes[name]
        shared = Workload.model_fields.keys() & TrafficClass.model_fields.keys()
        given = {key: value for key in shared if (value := getattr(mine, key)) is not None}
        if mine.sessions == "none":
            given["sessions"] = None
        if given.keys() & set(LENGTHS):
            own = (*LENGTHS, "rank_correlation", "trace_format", "limit")
            given = {**dict.fromkeys(own, None), **given}
        if mine.burstiness is not None or mine.cv is not None:
            given = {"burstiness": 1.0, "cv": None, **given}
        return self.model_copy(update={"mix": None, **given})

    @property
    def hottest(self) -> float:
        """The highest temperature of any request."""
        own = [each.temperature for each in self.classes.values()] or [None]
        return max(self.temperature if each is None else each for each in own)

    @property
    def closed_loop(self) -> bool:
        """Requests wait for a free slot and for nothing else."""
        return self.request_rate is not None and math.isinf(self.request_rate)
