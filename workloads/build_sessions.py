"""From a described workload of sessions to the table of its requests."""

from __future__ import annotations

import dataclasses

import numpy as np

from specfleet.workloads.arrivals import open_loop
from specfleet.workloads.build import WorkloadSpec
from specfleet.workloads.lengths import correlated_uniforms
from specfleet.workloads.rates import RateArrivals
from specfleet.workloads.requests import FloatArray, IntArray, RequestTable
from specfleet.workloads.sessions import Draws, SessionSpec, Turns, sessions
from specfleet.workloads.streams import Purpose, stream


def session_requests(spec: WorkloadSpec, session: SessionSpec, seed: int) -> RequestTable:
    """Returns turns of whole sessions, `spec.num_requests` or, for the last session's sake, some more.

    `spec.input` is what a turn adds, `spec.output` its answer, and a session is of one class. Sessions begin
    so often that `spec.request_rate` requests, or those of `spec.curve`, come per second. Same arguments,
    same bytes; with more requests the sessions before are the same, but for when they begin.

    Raises:
        ValueError: as `sessions.sessions`, and for a seed that `stream` refuses.
    """
    rng = {purpose: stream(seed, purpose) for purpose in Purpose}

    def lengths(u: FloatArray, v: FloatArray) -> tuple[IntArray, IntArray]:
        output = spec.output.quantile(correlated_uniforms(u, v, spec.rank_correlation))
        cap = spec.output.maximum if spec.max_tokens is None else spec.max_tokens
        return spec.input.quantile(u), np.minimum(output, cap)

    draws = Draws(
        lengths,
        *(rng[p].random for p in (Purpose.PROMPT, Purpose.OUTPUT, Purpose.THINK, Purpose.TOOL)),
        *(rng[p].random for p in (Purpose.TURNS, Purpose.PREFIX)),
    )
    made = sessions(session, draws, spec.num_requests)
    number = np.array(made.session)
    count = int(number[-1]) + 1
    share = count / len(number)
    if spec.curve is None:
        starts = open_loop(count, spec.request_rate * share, spec.burstiness, rng[Purpose.ARRIVAL])
    else:
        changing = RateArrivals(spec.curve.scaled(share), spec.burstiness, rng[Purpose.ARRIVAL])
        starts = changing.take(count)
    classes = np.zeros(count, dtype=np.int64)
    if spec.class_mix:
        bounds = np.cumsum([weight for _, weight in spec.class_mix])
        drawn = rng[Purpose.TRAFFIC_CLASS].random(count)
        classes = np.searchsorted(bounds / bounds[-1], drawn, side="right").astype(np.int64)
    return _table(spec, session, made, starts[number], classes[number])


def _table(
    spec: WorkloadSpec, session: SessionSpec, made: Turns, arrival_s: FloatArray, class_id: IntArray
) -> RequestTable:
    """Returns the rows as a table; each states what its law can give."""
    most = max(spec.output.maximum, *made.output) if spec.max_tokens is None else spec.max_tokens
    names = tuple(name for name, _ in spec.class_mix) or ("default",)
    table = turns_table(session, made, arrival_s, most, spec.ignore_eos, spec.temperature)
    table = dataclasses.replace(table, class_id=class_id, class_names=names)
    table.validate()
    return table


def turns_table(
    session: SessionSpec,
    made: Turns,
    arrival_s: FloatArray,
    most: int,
    ignore_eos: bool,
    temperature: float,
) -> RequestTable:
    """Returns turns as a table of one class, not validated.

    Args:
        session: how they follow each other.
        made: the turns.
        arrival_s: when the session of each begins.
        most: output tokens that a request states, or what is left of the positions.
        ignore_eos: each states what it writes.
        temperature: of all.
    """
    prompt, output = np.array(made.prompt), np.array(made.output)
    stated = np.full(len(prompt), most)
    if session.max_model_len is not None:
        stated = np.minimum(stated, session.max_model_len - prompt)
    offset, streams, tokens = made.segments(session)
    zeros = np.zeros(len(prompt), dtype=np.int64)
    return RequestTable(
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=output if ignore_eos else np.maximum(stated, output),
        class_id=zeros,
        priority=zeros,
        temperature=np.full(len(prompt), temperature),
        session_id=np.array(made.session),
        turn=np.array(made.turn),
        segment_offset=offset,
        segment_stream=streams,
        segment_tokens=tokens,
        think_s=np.array(made.think_s),
        output_stream=np.array(made.output_stream),
    )
