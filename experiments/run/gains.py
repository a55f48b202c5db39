"""What a point gains over the one it is compared with: ratios with their intervals, and the verdict.

Both met the same requests and the same luck, seed by seed. So latencies are paired request by request and
throughputs completion by completion, or stretch by stretch of time; what moved both alike falls away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import exp, inf

import numpy as np

from specfleet.experiments.run.traffic import STRETCHES, Served, common
from specfleet.sim.config import Slo
from specfleet.sim.statistics.flow import Flow
from specfleet.sim.statistics.interval import Estimate, Interval
from specfleet.sim.statistics.pairs import ratio_of_means, ratio_of_percentiles, ratio_of_rates
from specfleet.sim.statistics.series import F64
from specfleet.sim.statistics.verdict import LEAST_GAIN, Verdict, verdict

THROUGHPUT, MEAN_TPOT, P99_TPOT = "speedup_output_throughput", "speedup_mean_tpot", "speedup_p99_tpot"
GOODPUT = "speedup_goodput"

WIDER = 2.0
"""How many times as wide an interval must lie on one side where too little was seen to trust it."""

Amounts = Callable[[Served], F64]
"""What each request adds when it ends."""

Pairs = Sequence[tuple[Served, Served]]
"""The requests that ended with both, of the plain run and of the other, a pair a seed."""


def gains(
    mine: Sequence[Served],
    theirs: Sequence[Served],
    classes: Sequence[str] = (),
    open_loop: bool = False,
    saturated: bool = False,
    least_gain: float = LEAST_GAIN,
) -> dict[str, object]:
    """Returns the columns `RATIO_low`, `RATIO_high` and `RATIO_verdict` of a point; more than 1 is better.

    In an open loop the ratio of throughputs is measured over the window of arrivals and stands here too:
    while the last requests drain, a run serves fewer than come. It has a verdict only where one of
    the two is saturated: what both serve in full, both serve alike. Where nothing ended before the last
    came, it is measured over the whole run.

    Args:
        mine: the replications of the point.
        theirs: those of the point that it is compared with.
        classes: names of the traffic classes, where there are several.
        open_loop: whether requests come at times of their own.
        saturated: whether more comes than one of the two serves.
        least_gain: what a ratio must exceed 1 by to count.
    """
    pairs = [common(plain, other) for other, plain in zip(mine, theirs, strict=True)]
    row: dict[str, object] = {}
    judged = saturated or not open_loop
    found = _throughput_in_window(mine, theirs) if open_loop else None
    found = _throughput(pairs) if found is None else found
    if found is not None:
        row |= columns(THROUGHPUT, found, least_gain if judged else None)
        if open_loop:
            row |= {THROUGHPUT: found.value, f"{THROUGHPUT}_ci95": found.half_width}
    for name, ratio in _latencies(pairs, classes):
        row |= columns(name, ratio, least_gain)
    return row


def of_replications(ratios: Sequence[float]) -> Interval | None:
    """Returns the mean ratio of independent replications with its interval; None with one."""
    if len(ratios) < 2:
        return None
    logs = np.log(np.asarray(ratios))
    influence = (logs - logs.mean())[:, None] / len(logs)
    found = Estimate(float(logs.mean()), influence, inf).interval()
    return Interval(
        exp(found.value),
        exp(found.low),
        exp(min(found.high, 700.0)),
        found.confidence,
        float(len(logs)),
        float(len(logs)),
        found.degrees,
        found.short,
    )


def columns(name: str, found: Interval | None, least_gain: float | None) -> dict[str, object]:
    """Returns the columns beside a ratio; no interval is an answer that is not settled."""
    if found is None:
        return {} if least_gain is None else {f"{name}_verdict": "not settled"}
    row: dict[str, object] = {f"{name}_low": found.low, f"{name}_high": found.high}
    return row if least_gain is None else row | {f"{name}_verdict": judge(found, least_gain)}


def judge(found: Interval, least_gain: float) -> Verdict:
    """Judges a ratio; where too little was seen to trust its interval, one `WIDER` times as wide.

    On prefixes of 300 to 1,500 requests of the demo, where the interval of a ratio of P99s was seldom to be
    trusted, 147 verdicts by the interval itself and 90 by one twice as wide agreed with four runs
    of full length, and none did not.
    """
    if found.enough or not (found.low > 0.0 and found.high < inf):
        return verdict(found, least_gain)
    low, high = (found.value * (end / found.value) ** WIDER for end in (found.low, found.high))
    return verdict(replace(found, low=low, high=high, short=""), least_gain)


def goodput(
    mine: Sequence[Served], theirs: Sequence[Served], slo: Slo, open_loop: bool = False
) -> Interval | None:
    """Returns the ratio of the requests per second that met all limits; None where one side has none.

    Args:
        mine: the replications of the point.
        theirs: those of the point that it is compared with.
        slo: the limits of one request.
        open_loop: whether requests come at times of their own.
    """

    def good(run: Served) -> F64:
        return run.good(slo)

    if not all(any(good(run).any() for run in runs) for runs in (mine, theirs)):
        return None
    found = _throughput_in_window(mine, theirs, good) if open_loop else None
    pairs = [common(plain, other) for other, plain in zip(mine, theirs, strict=True)]
    return _throughput(pairs, good) if found is None else found


def _tokens(run: Served) -> F64:
    return run.output_tokens


def _throughput(pairs: Pairs, amounts: Amounts = _tokens) -> Interval | None:
    """The ratio of throughputs of closed loops, over all that was counted."""
    sides: tuple[list[F64], ...] = ([], [], [], [])
    for pair in pairs:
        for place, run in enumerate(pair):
            if not len(run):
                return None
            started, ended = float(run.sent_s.min()), float(run.last_s.max())
            flow, order = Flow.of(run.sent_s, run.last_s)
            tokens, seconds = flow.completions(amounts(run)[order], started, ended)
            sides[2 * place].append(tokens)
            sides[2 * place + 1].append(seconds)
    return ratio_of_rates((sides[0], sides[1]), (sides[2], sides[3])) if sides[0] else None


def _throughput_in_window(
    mine: Sequence[Served], theirs: Sequence[Served], amounts: Amounts = _tokens
) -> Interval | None:
    """The ratio of throughputs of open loops, from where both have filled to the last arrival."""
    tokens: tuple[list[F64], list[F64]] = ([], [])
    for other, plain in zip(mine, theirs, strict=True):
        if min(len(other), len(plain)) < 2:
            return None
        from_s = max(run.steady.from_s for run in (other, plain))
        to_s = min(float(run.sent_s.max()) for run in (other, plain))
        for place, run in enumerate((plain, other)):
            within = to_s > from_s
            counts = run.by_stretch(amounts(run), from_s, to_s) if within else np.zeros(STRETCHES)
            if not counts.any():
                return None
            tokens[place].append(counts)
    seconds = [np.ones(STRETCHES) for _ in mine]
    return ratio_of_rates((tokens[0], seconds), (tokens[1], seconds)) if mine else None


def _latencies(pairs: Pairs, classes: Sequence[str]) -> Iterator[tuple[str, Interval | None]]:
    """The ratios of TPOT, of all requests and of each traffic class."""
    yield MEAN_TPOT, _tpot(pairs, None, None)
    yield P99_TPOT, _tpot(pairs, None, 99.0)
    for place, name in enumerate(classes):
        if not any((plain.class_id == place).any() for plain, _ in pairs):
            continue
        yield f"speedup:class:{name}:mean_tpot_ms", _tpot(pairs, place, None)
        yield f"speedup:class:{name}:p99_tpot_ms", _tpot(pairs, place, 99.0)


def _tpot(pairs: Pairs, of_class: int | None, percent: float | None) -> Interval | None:
    plain_s, other_s = [], []
    for plain, other in pairs:
        chosen = plain.output_tokens > 1
        if of_class is not None:
            chosen &= plain.class_id == of_class
        if not chosen.any() or plain.tpot_s[chosen].min() <= 0.0 or other.tpot_s[chosen].min() <= 0.0:
            return None
        plain_s.append(plain.tpot_s[chosen])
        other_s.append(other.tpot_s[chosen])
    if not plain_s:
        return None
    if percent is None:
        return ratio_of_means(other_s, plain_s)
    return ratio_of_percentiles(other_s, plain_s, percent)
