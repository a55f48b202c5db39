"""From the lengths that a workload states to their laws, and from a mix to its classes."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from specfleet.experiments.point.lengths import law
from specfleet.experiments.point.recorded import recorded_requests
from specfleet.experiments.point.sessions import session_spec
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.lengths import Lengths
from specfleet.experiments.schema.blocks.workload import TrafficClass, Workload
from specfleet.workloads import classes
from specfleet.workloads.classes import Mix
from specfleet.workloads.lengths import (
    Capped,
    Fixed,
    LengthDistribution,
    Recorded,
)
from specfleet.workloads.requests import IntArray
from specfleet.workloads.traces.formats import read_trace


class Laws(NamedTuple):
    """How long prompts and outputs are, how they go together, and the cap that a request states."""

    prompt: LengthDistribution
    output: LengthDistribution
    rank_correlation: float
    max_tokens: int | None


def laws(workload: Workload) -> Laws:
    """Returns the laws of a workload, or of one class of it, that takes its lengths from no trace."""
    if workload.preset is not None:
        preset = lookups.preset(workload.preset)
        prompts, outputs, correlation = preset.input, preset.output, preset.rank_correlation
        cap: int | None = preset.max_tokens
    else:
        assert workload.input_len or workload.input, "the rules ask for lengths"
        prompts = Fixed(workload.input_len) if workload.input_len else law(workload.input or Lengths())
        outputs = Fixed(workload.output_len) if workload.output_len else law(workload.output or Lengths())
        correlation, cap = 0.0, None
    if workload.output_cap is not None:
        outputs = Capped(outputs, workload.output_cap)
        cap = workload.output_cap if cap is None else min(cap, workload.output_cap)
    given = workload.rank_correlation
    return Laws(prompts, outputs, correlation if given is None else given, workload.max_tokens or cap)


def mix_of(workload: Workload, max_model_len: int | None = None) -> Mix | None:
    """Returns the classes of a workload whose classes differ in more than their name; None for any other.

    Classes with rates of their own keep them, or are sped up alike to add up to `request_rate`; where that is
    .inf their rates are shares.

    Args:
        workload: filled in.
        max_model_len: rows of traces that are longer are left out, where a class says so.
    """
    if not workload.classes:
        return None
    rate, own = workload.request_rate, workload.rate_of_classes
    streams = bool(workload.replayed) or (own is not None and (rate is None or rate < math.inf))
    mix = Mix(
        tuple(_class(workload, name, own, streams, max_model_len) for name in workload.classes),
    )
    return mix.scaled(rate) if streams and rate is not None and rate < math.inf else mix


def _class(
    workload: Workload, name: str, total: float | None, streams: bool, max_model_len: int | None
) -> classes.TrafficClass:
    given, mine = workload.classes[name], workload.of_class(name)
    found = _recorded(mine, max_model_len) if mine.trace is not None else laws(mine)
    share = given.share if total is None else (given.request_rate or 0.0) / total
    prefix, replayed = mine.prefix, name in workload.replayed
    return classes.TrafficClass(
        name,
        found.prompt,
        found.output,
        share=None if streams else share,
        request_rate=given.request_rate if streams else None,
        recorded=recorded_requests(mine, max_model_len) if replayed else None,
        sessions=session_spec(mine.sessions, max_model_len) if mine.sessions else None,
        burstiness=mine.gap_shape,
        rank_correlation=found.rank_correlation,
        max_tokens=found.max_tokens,
        ignore_eos=mine.ignore_eos,
        prefix_tokens=prefix.tokens if prefix else 0,
        prefix_groups=prefix.groups if prefix else 1,
        temperature=mine.temperature,
        priority=given.priority,
    )


def _recorded(mine: Workload, max_model_len: int | None) -> Laws:
    """The rows of a trace as laws; a row is drawn for each request."""
    prompt, output = recorded_lengths(mine)
    if mine.on_too_long == "drop" and max_model_len is not None:
        kept = prompt + output <= max_model_len
        prompt, output = prompt[kept], output[kept]
    return Laws(Recorded(prompt), Recorded(output), 0.0, mine.max_tokens or mine.output_cap)


def recorded_lengths(mine: Workload) -> tuple[IntArray, IntArray]:
    """Returns the prompt and output tokens of a class's trace, rows in order of prompt.

    Raises:
        ValueError, OSError: as `read_trace`.
    """
    return _rows(Workload(trace=mine.trace, trace_format=mine.trace_format, limit=mine.limit))


@lru_cache(maxsize=8)
def _rows(workload: Workload) -> tuple[IntArray, IntArray]:
    assert workload.trace_file is not None
    table = read_trace(workload.trace_file, workload.trace_format, **workload.trace_asked).requests
    order = np.argsort(table.prompt_tokens, kind="stable")
    return table.prompt_tokens[order], table.output_tokens[order]


def writes_what_it_asks(workload: Workload) -> bool:
    """Returns whether every request states exactly what it writes."""
    names = workload.classes
    return all(workload.of_class(name).ignore_eos for name in names) if names else workload.ignore_eos


def each_class(workload: Workload) -> dict[str, tuple[str, Workload]]:
    """Class -> where its own keys stand, and what is asked of it; "" where requests are of one kind."""
    if not workload.classes:
        return {"": ("workload", workload)}
    return {name: (f"workload.mix.{name}", workload.of_class(name)) for name in workload.classes}


__all__ = ["Laws", "TrafficClass", "each_class", "laws", "mix_of", "writes_what_it_asks"]
