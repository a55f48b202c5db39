"""The `workload.arrivals:` block: a rate that changes with time."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, TypeAlias

from pydantic import Field

from specfleet.experiments.schema.blocks.base import RATES_PER_S, Block
from specfleet.workloads.profiles import Minutes, preset, preset_names
from specfleet.workloads.rates import DAY_S, RateCurve, ramp, schedule, spike, wave

_MOST_S = 1e8
"""Seconds, three years: no run lasts longer."""

Seconds: TypeAlias = Annotated[float, Field(gt=0, le=_MOST_S)]
PerSecond: TypeAlias = Annotated[float, Field(ge=0, le=RATES_PER_S[1])]


class Schedule(Block):
    """A rate that jumps from one stretch to the next."""

    every_s: Seconds
    """Length of a stretch, seconds."""
    requests_per_s: Annotated[tuple[PerSecond, ...], Field(min_length=2, max_length=100_000)]
    """Rate of each stretch; 0 is a pause. Where request_rate is given, it is their mean and ratios count."""
    repeats: bool = True
    """After the last comes the first again; else the last rate stays."""


class Diurnal(Block):
    """A wave, such as that of a day; request_rate is its mean."""

    peak_to_trough: Annotated[float, Field(ge=1, le=1e6)]
    """Highest rate over the lowest."""
    peak_at_s: Annotated[float, Field(ge=0, le=_MOST_S)] = 0.0
    """When the rate is highest, seconds from the start of the run."""
    period_s: Seconds = DAY_S
    """From peak to peak, seconds."""


class Ramp(Block):
    """A rate that goes straight from one to another, and stays; request_rate, if given, is where it ends."""

    from_per_s: PerSecond
    """Requests/s at the start."""
    to_per_s: Annotated[float, Field(gt=0, le=RATES_PER_S[1])]
    """Requests/s at the end."""
    over_s: Seconds
    """How long it takes, seconds."""


class Spike(Block):
    """A rate that is another one for a while; request_rate is the one before and after."""

    at_s: Annotated[float, Field(ge=0, le=_MOST_S)]
    """When it begins, seconds from the start of the run."""
    for_s: Seconds
    """How long it lasts, seconds."""
    factor: Annotated[float, Field(ge=0, le=1e6)]
    """Times the rate before it."""


class Arrivals(Block):
    """A rate that changes with time: exactly one of the five. Gaps stay gamma in expected requests, of shape
    burstiness. Without num_prompts as many requests come as in one period, in a ramp, or until as long after
    a spike as before it."""

    schedule: Schedule | None = None
    diurnal: Diurnal | None = None
    ramp: Ramp | None = None
    spike: Spike | None = None
    preset: str | None = None
    """A preset's recorded rate, minute by minute, with its burstiness within a minute."""

    @property
    def given(self) -> list[str]:
        """The laws that are there."""
        return [name for name in type(self).model_fields if getattr(self, name) is not None]

    @property
    def lasts(self) -> bool:
        """Whether it brings requests for as long as one waits."""
        law = self.schedule
        if self.preset is not None:
            return self.minutes is not None
        if law is None or law.repeats:
            return law is None or any(law.requests_per_s)
        return law.requests_per_s[-1] > 0

    @property
    def says_rate(self) -> bool:
        """Whether it says how many requests a second there are, and not a shape alone."""
        return self.given in (["schedule"], ["ramp"], ["preset"]) and self.lasts

    @property
    def minutes(self) -> Minutes | None:
        """The recorded arrivals of its preset; None where there is no such preset, or it has none."""
        if self.preset is None or self.preset not in preset_names():
            return None
        return preset(self.preset).minutes

    @property
    def span_s(self) -> float:
        """Seconds that its requests cover where their number is not given."""
        if self.spike is not None:
            return 2.0 * self.spike.at_s + self.spike.for_s
        return self._shape.period_s

    @cached_property
    def _shape(self) -> RateCurve:
        if self.schedule is not None:
            return schedule(self.schedule.requests_per_s, self.schedule.every_s, self.schedule.repeats)
        if self.diurnal is not None:
            return wave(self.diurnal.peak_to_trough, self.diurnal.peak_at_s, self.diurnal.period_s)
        if self.ramp is not None:
            return ramp(self.ramp.from_per_s, self.ramp.to_per_s, self.ramp.over_s)
        if self.minutes is not None:
            return self.minutes.curve()
        assert self.spike is not None, "the rules ask for exactly one"
        return spike(self.spike.at_s, self.spike.for_s, self.spike.factor)

    @property
    def own_rate_per_s(self) -> float:
        """Requests/s that `request_rate` stands for: the mean of what repeats, the last of what does not."""
        return self._shape.mean_per_s

    def curve(self, request_rate: float) -> RateCurve:
        """Returns the rate over time at the workload's `request_rate`. ValueError for one of no requests."""
        shape = self._shape
        return shape.scaled(request_rate / shape.mean_per_s)
