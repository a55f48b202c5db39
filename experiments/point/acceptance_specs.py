"""From an `acceptance:` block to the process it states."""

from __future__ import annotations

import dataclasses

import numpy as np

from specfleet.experiments.point.acceptance_traces import read_traces
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.acceptance import QUANTITIES, Process
from specfleet.experiments.schema.lookups import found
from specfleet.sim.speculation.acceptance import survival_table
from specfleet.sim.speculation.bursts import Burst, HotCold
from specfleet.sim.speculation.overlap import Overlap
from specfleet.sim.speculation.own import OwnProcess
from specfleet.sim.speculation.replay import NO_MATCH
from specfleet.sim.speculation.spec import AcceptanceSpec, context_knee
from specfleet.sim.speculation.spread import LowAtom


def written_out(given: Process) -> Process:
    """A process with the numbers of its profile in place of the name; keys beside the name win."""
    others = [key for key in QUANTITIES if key != "profile" and getattr(given, key) is not None]
    name = given.profile
    if name is None or others:
        return given
    profile = found(lambda: lookups.acceptance_profile(name))
    if profile is None:
        return given
    own = {key: getattr(given, key) for key in given.model_fields_set if key != "profile"}
    if "concentration" in own:
        own.setdefault("concentration_range", None)
    stated = {"source": f"profile {name}: {profile.source}", **own, "profile": None}
    return profile.model_copy(update=stated)


def acceptance_spec(process: Process) -> AcceptanceSpec:
    """Returns what a block states, for chains."""
    stated = _stated(process)
    return stated if process.scale == 1.0 else scaled(stated, process.scale)


def _stated(process: Process) -> AcceptanceSpec:
    """The process as measured."""
    if process.process is not None:
        return AcceptanceSpec(own=OwnProcess(process.process, process.own), source=process.source)
    probability = process.proposal_probability
    nodes = process.context_multiplier or ()
    if process.context_knee is not None:
        nodes = context_knee(process.context_knee)
    traces = None
    if process.replay is not None:
        traces = read_traces(process.replay, process.replay_counts)
    return AcceptanceSpec(
        by_position=process.by_position,
        conditional_acceptance=process.conditional_acceptance,
        acceptance_length=process.acceptance_length,
        draft_acceptance_rate=process.draft_acceptance_rate,
        replay=traces,
        measured_at_k=process.measured_at_k,
        concentration=process.concentration,
        low_atom=LowAtom(**process.low_atom.model_dump()) if process.low_atom else None,
        decay=process.decay,
        burst=Burst(**process.burst.model_dump()) if process.burst else None,
        hot_cold=HotCold(**process.hot_cold.model_dump()) if process.hot_cold else None,
        context_multiplier=nodes,
        temperature_multiplier=process.temperature_multiplier or (),
        turn_multiplier=process.turn_multiplier or (),
        overlap=Overlap(**process.overlap.model_dump()) if process.overlap else None,
        length_rank_correlation=process.length_rank_correlation,
        proposal_probability=1.0 if probability is None else probability,
        proposal_persistence=process.proposal_persistence,
        source=process.source,
    )


OWN_POSITIONS = 32
"""Positions at which a user's own process is sampled."""


def scaled(spec: AcceptanceSpec, factor: float) -> AcceptanceSpec:
    """Returns a process whose conditional acceptance is `factor` times as high, for every request.

    Recorded requests and a user's own process cannot be changed: the process that accepts as they do on
    average takes their place.
    """
    if spec.own is not None:
        by_position = survival_table(spec, OWN_POSITIONS)[0]
        spec = dataclasses.replace(spec, own=None, by_position=tuple(map(float, by_position)))
    if spec.replay is not None:
        longest = max(accepted for trace in spec.replay for accepted in trace if accepted != NO_MATCH)
        by_position = survival_table(spec, longest or 1)[0]
        spec = dataclasses.replace(spec, replay=None, by_position=tuple(map(float, by_position)))
    if spec.hot_cold is not None:
        hot = dataclasses.replace(spec.hot_cold, accept_hot=min(factor * spec.hot_cold.accept_hot, 1.0))
        reach = OWN_POSITIONS if spec.by_position is None else len(spec.by_position)
        by_position = survival_table(spec, reach).mean(axis=0)
        lower = np.minimum.accumulate(np.minimum(by_position * factor ** np.arange(1, reach + 1), 1.0))
        return dataclasses.replace(
            spec,
            hot_cold=hot,
            by_position=tuple(map(float, lower)),
            conditional_acceptance=None,
            acceptance_length=None,
            draft_acceptance_rate=None,
            decay=1.0,
        )
    nodes = spec.context_multiplier or ((1.0, 1.0),)
    return dataclasses.replace(
        spec, context_multiplier=tuple((tokens, value * factor) for tokens, value in nodes)
    )
