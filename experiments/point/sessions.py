"""From a `workload.sessions` block to how requests follow each other."""

from __future__ import annotations

import dataclasses

import numpy as np

from specfleet.experiments.point.lengths import law
from specfleet.experiments.schema.blocks.sessions import ContextCut, Pause, Sessions
from specfleet.experiments.schema.blocks.workload import Workload
from specfleet.sim.fleet.patience import PatienceConfig
from specfleet.workloads.pauses import (
    EmpiricalPause,
    ExponentialPause,
    FixedPause,
    LogNormalPause,
    PauseLaw,
    UniformPause,
)
from specfleet.workloads.requests import RequestTable
from specfleet.workloads.sessions import Cut, SessionSpec, Tools
from specfleet.workloads.streams import Purpose, stream


def pause_law(pause: Pause) -> PauseLaw:
    """Returns the distribution that a block of pauses describes."""
    if pause.fixed is not None:
        return FixedPause(pause.fixed)
    if pause.uniform is not None:
        return UniformPause(pause.uniform.low, pause.uniform.high)
    if pause.exponential is not None:
        return ExponentialPause(pause.exponential)
    if pause.lognormal is not None:
        return LogNormalPause(pause.lognormal.median, pause.lognormal.sigma, pause.lognormal.max)
    assert pause.quantiles is not None, "the rules ask for exactly one distribution"
    return EmpiricalPause(tuple(p for p, _ in pause.quantiles), tuple(v for _, v in pause.quantiles))


def with_thought(table: RequestTable, workload: Workload, seed: int) -> RequestTable:
    """Returns requests with the pauses that a user makes before each of them, or before each session."""
    if workload.alone and workload.thinks:
        return _with_thought_by_class(table, workload, seed)
    if workload.think_time_s is None:
        return table
    drawn = pause_law(workload.think_time_s).quantile(stream(seed, Purpose.BETWEEN).random(len(table)))
    first = table.turn == 0
    between = drawn if table.think_s is None else np.where(first, drawn, table.think_s)
    return dataclasses.replace(table, think_s=between)


def _with_thought_by_class(table: RequestTable, workload: Workload, seed: int) -> RequestTable:
    """The same, the pauses of each class drawn by themselves."""
    between = np.zeros(len(table)) if table.think_s is None else np.array(table.think_s)
    for place, name in enumerate(table.class_names):
        pause = workload.of_class(name).think_time_s
        mine = np.flatnonzero((table.class_id == place) & (table.turn == 0))
        if pause is not None:
            between[mine] = pause_law(pause).quantile(stream(seed, Purpose.BETWEEN, name).random(len(mine)))
    return dataclasses.replace(table, think_s=between)


def session_spec(sessions: Sessions, max_model_len: int | None) -> SessionSpec:
    """Returns what a block says; no prompt and output together exceed `max_model_len` tokens."""
    cut, tool, system = None, sessions.tool, sessions.system_prompt
    if isinstance(sessions.context, ContextCut):
        asked = sessions.context.compact or sessions.context.trim
        assert asked is not None, "the rules ask for exactly one"
        cut = Cut(asked.above_tokens, asked.to_tokens, summarises=sessions.context.compact is not None)
    return SessionSpec(
        turns=law(sessions.turns),
        think=pause_law(sessions.think_time_s),
        first=law(sessions.first_input) if sessions.first_input else None,
        cut=cut,
        system_tokens=system.tokens if system else 0,
        system_pools=system.pools if system else 1,
        tool=None
        if tool is None
        else Tools(
            tool.probability,
            pause_law(tool.pause_s),
            law(tool.result),
            law(tool.call) if tool.call else None,
        ),
        reasoning_share=sessions.reasoning_share,
        max_model_len=max_model_len,
    )


def patience_of(workload: Workload) -> dict[str, PatienceConfig]:
    """Returns how long clients wait, by traffic class; the key `""` is of all, where there are none."""
    names = workload.classes
    asked = {name: workload.of_class(name).patience for name in names} or {"": workload.patience}
    return {
        name: PatienceConfig(
            None if block.ttft_timeout_s is None else pause_law(block.ttft_timeout_s),
            None if block.timeout_s is None else pause_law(block.timeout_s),
            block.retries,
            1.0 if block.backoff_s is None else block.backoff_s,
        )
        for name, block in asked.items()
        if block is not None
    }
