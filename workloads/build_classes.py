"""From classes of which some are sessions, or recorded requests at their own times, to one table.

Every class is built alone, from random numbers keyed by its name, and then they are merged: streams with
rates and traces by time, shares by drawing whose turn it is. What is merged are *units*, single requests or
whole sessions. So the k-th request of a class is the same, and has the same luck, whoever else is there.
"""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache

import numpy as np

from specfleet.workloads.arrivals import open_loop
from specfleet.workloads.build import WorkloadSpec
from specfleet.workloads.build_sessions import turns_table
from specfleet.workloads.classes import MergedRows, Mix, TrafficClass
from specfleet.workloads.rates import RateArrivals
from specfleet.workloads.requests import FloatArray, IntArray, RequestTable
from specfleet.workloads.sessions import Draws, SessionSpec, Turns, sessions
from specfleet.workloads.streams import Purpose, class_key, stream
from specfleet.workloads.tables import joined, reordered

_FEWEST = 64
"""Rows of a class that are made at first, at least."""
_SAMPLE = 4096
"""Turns from which it is told how many requests a session has."""


def class_requests(spec: WorkloadSpec, seed: int) -> RequestTable:
    """Returns the requests of `spec.mix`, `spec.num_requests` of them or, for the last session's sake, more;
    fewer where nothing but recorded requests is there and they end.

    Same arguments, same bytes; with more requests those of a class are the same and then more.

    Raises:
        ValueError: as `sessions.sessions`.
    """
    assert spec.mix is not None, "asked of a mix"
    table = _by_rate(spec, spec.mix, seed) if spec.mix.by_rate else _by_share(spec, spec.mix, seed)
    table.validate()
    return table


def requests_a_session(each: TrafficClass) -> float:
    """Returns the mean of the requests that a session of a class has, those that compact contexts among them;
    1 where its requests are single ones.

    Where sessions end before their last turn, or contexts are compacted, a sample says how many there are.
    """
    return 1.0 if each.sessions is None else _requests_a_session(each, each.sessions)


@lru_cache(maxsize=256)
def _requests_a_session(each: TrafficClass, spec: SessionSpec) -> float:
    made = _turns(each, spec, 0, _SAMPLE)
    drawn = spec.turns.quantile(stream(0, Purpose.TURNS, each.name).random(made.session[-1] + 1))
    return spec.turns.mean * len(made.session) / float(drawn.sum())


def _turns(each: TrafficClass, spec: SessionSpec, seed: int, least_rows: int) -> Turns:
    """Turns of whole sessions of a class."""
    order = (Purpose.PROMPT, Purpose.OUTPUT, Purpose.THINK, Purpose.TOOL, Purpose.TURNS, Purpose.PREFIX)
    draws = Draws(each.lengths, *(stream(seed, purpose, each.name).random for purpose in order))
    return sessions(spec, draws, least_rows)


def _alone(each: TrafficClass, place: int, seed: int, rows: int) -> RequestTable:
    """Returns the first requests of a class, at least so many if it has them, as if it were alone."""
    if each.recorded is not None:
        table = each.recorded
    elif each.sessions is not None:
        table = _of_sessions(each, each.sessions, seed, rows)
    else:
        rated = each if each.share is None else dataclasses.replace(each, share=None, request_rate=1.0)
        table = MergedRows(Mix((rated,)), seed).take(np.arange(rows))
    n = len(table)
    return dataclasses.replace(
        table,
        class_id=np.full(n, place),
        class_names=("",) * (place + 1),
        priority=np.full(n, each.priority),
        temperature=np.full(n, each.temperature),
        luck_id=(class_key(each.name) << 32) + np.arange(n),
    )


def _of_sessions(each: TrafficClass, spec: SessionSpec, seed: int, rows: int) -> RequestTable:
    """Turns of whole sessions, which begin at the class's own rate, or at 0 where it has a share."""
    made = _turns(each, spec, seed, rows)
    number = np.array(made.session)
    starts = np.zeros(int(number[-1]) + 1)
    if each.request_rate is not None:
        rate, shape = each.request_rate / requests_a_session(each), each.burstiness
        even = math.isinf(shape)
        draws = stream(seed, Purpose.ARRIVAL, each.name)
        gaps = np.ones(len(starts)) if even else draws.standard_gamma(shape, size=len(starts))
        starts = np.cumsum(gaps) / ((1.0 if even else shape) * rate)
    most = max(each.most_output, spec.longest_other_output)
    return turns_table(spec, made, starts[number], most, each.ignore_eos, each.temperature)


def _by_rate(spec: WorkloadSpec, mix: Mix, seed: int) -> RequestTable:
    """Streams merged in the order of time, until so many requests are there that all of them are known."""
    n, total = spec.num_requests, sum(mix.classes[place].weight for place in mix.sending)
    each = [mix.classes[place] for place in mix.sending]
    rows = [max(int(1.2 * n * one.weight / total), _FEWEST) for one in each]
    while True:
        tables = [_alone(one, at, seed, r) for one, at, r in zip(each, mix.sending, rows, strict=True)]
        ends = [
            math.inf if one.recorded is not None else float(table.arrival_s[-1])
            for one, table in zip(each, tables, strict=True)
        ]
        known = sum(int((table.arrival_s <= min(ends)).sum()) for table in tables)
        if known >= n or math.isinf(min(ends)):
            break
        rows[ends.index(min(ends))] *= 2
    table = joined(tables, [one.name for one in mix.classes])
    order = np.argsort(table.arrival_s, kind="stable")
    return reordered(table, _whole(table, order, n))


def _by_share(spec: WorkloadSpec, mix: Mix, seed: int) -> RequestTable:
    """One stream of units, for each of which its class is drawn, so often that its requests are its share."""
    n, each = spec.num_requests, [mix.classes[place] for place in mix.sending]
    weights = np.array([one.weight / requests_a_session(one) for one in each])
    bounds = np.cumsum(weights) / weights.sum()
    drawn = np.searchsorted(bounds, stream(seed, Purpose.TRAFFIC_CLASS).random(n), side="right")
    rows = [max(int(1.2 * n * one.weight), _FEWEST) for one in each]
    while True:
        tables = [_alone(one, at, seed, r) for one, at, r in zip(each, mix.sending, rows, strict=True)]
        have = np.array([int((table.turn == 0).sum()) for table in tables])
        turn_of = np.concatenate([_turn_of(drawn == number, have[number]) for number in range(len(each))])
        table = joined(tables, [one.name for one in mix.classes])
        unit = np.cumsum(table.turn == 0) - 1
        order = np.lexsort((np.arange(len(table)), turn_of[unit]))
        order = order[turn_of[unit][order] < _first_missing(drawn, have)]
        if len(order) >= n:
            break
        rows = [2 * r for r in rows]
    order = _whole(table, order, n)
    starts = _starts(spec, seed, int((table.turn[order] == 0).sum()), len(order))
    table = reordered(table, order)
    return dataclasses.replace(table, arrival_s=starts[np.cumsum(table.turn == 0) - 1])


def _turn_of(mine: IntArray, have: int) -> IntArray:
    """When each unit of a class has its turn among all units; far behind where it is not drawn."""
    places = np.flatnonzero(mine)[:have]
    return np.concatenate([places, np.full(have - len(places), len(mine))])


def _first_missing(drawn: IntArray, have: IntArray) -> int:
    """The first unit that is drawn and not made; all of them where none is missing."""
    number = np.zeros(len(drawn), dtype=np.int64)
    for one in range(len(have)):
        mine = drawn == one
        number[mine] = np.arange(int(mine.sum()))
    missing = np.flatnonzero(number >= have[drawn])
    return int(missing[0]) if len(missing) else len(drawn)


def _starts(spec: WorkloadSpec, seed: int, units: int, rows: int) -> FloatArray:
    """When each unit of one stream begins, so that so many rows come at the rate of requests."""
    rng, share = stream(seed, Purpose.ARRIVAL), units / rows
    if spec.curve is None:
        return open_loop(units, spec.request_rate * share, spec.burstiness, rng)
    return RateArrivals(spec.curve.scaled(share), spec.burstiness, rng).take(units)


def _whole(table: RequestTable, order: IntArray, n: int) -> IntArray:
    """The first n rows, and the rest of the last session among them."""
    if len(order) <= n:
        return order
    begins = np.flatnonzero(table.turn[order[n:]] == 0)
    return order[: n + int(begins[0])] if len(begins) else order
