"""Where the time to first tokens went where KV is handed over, in a sentence a point."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from specfleet.experiments.run.apart import GOODPUT, NOISE, Apart, compared_apart
from specfleet.experiments.run.costs.energy import COST
from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.values import counted, named

PARTS = (
    ("queue", "waiting to be computed"),
    ("prefill", "computing the prompt"),
    ("handover", "until the decode replica has room"),
    ("transfer", "KV on its way"),
    ("decode_queue", "waiting to be decoded"),
    ("first_step", "its first step there"),
    ("client", "the client"),
)
"""Parts of a TTFT, as they follow each other, and the client's."""
MANY = 8
"""Points of which a sentence is said; of more, those that differ most in their transfers."""


NEAR = 0.02
"""Ratios that differ from 1 by less are as good as each other."""


def apart_said(rows: Sequence[Row], axes: Sequence[str]) -> list[str]:
    """Returns where prefill and decode apart serve more than replicas that do both, on as many GPUs, and what
    becomes of latencies where they serve least and most; nothing where the two are not compared."""
    found = compared_apart(rows, axes)
    if not found:
        return []
    of = "requests within the limits of the SLO" if found[0].measure == GOODPUT else "output tokens"
    more = sum(one.ratio > 1.0 + NEAR for one in found)
    less = sum(one.ratio < 1.0 - NEAR for one in found)
    said = [
        f"Prefill and decode apart, against replicas that do both on as many GPUs, the best split at each of "
        f"{counted(len(found), 'setting')}: {of} a second are more at {more}, fewer at {less}, and within "
        f"{NEAR:.0%} at {len(found) - more - less}."
    ]
    said[0] += _how_sure(found)
    order = sorted(found, key=lambda one: one.ratio)
    for one in order[:1] if len(order) == 1 else (order[0], order[-1]):
        where = ", ".join(named(axis, value) for axis, value in one.setting.items())
        times = f"{one.ratio:.2f} times as many" if one.ratio < inf else "some where there were none"
        ttft, tpot = (
            f"{number(one.whole, key):,.{digits}f} -> {number(one.best, key):,.{digits}f} ms"
            for key, digits in (("mean_ttft_ms", 0), ("p99_tpot_ms", 1))
        )
        cost = one.times(COST)
        more_cost = f", {cost:.2f} times the cost an output token" if cost is not None else ""
        said.append(
            f"{where + ': ' if where else ''}{times} on {one.split} GPUs; mean TTFT {ttft}, P99 TPOT {tpot}"
            f"{more_cost}."
        )
    return said


def _how_sure(found: Sequence[Apart]) -> str:
    """Says how many of the ratios are more than noise, and where a limit of the SLO decides."""
    noise = sum(one.verdict == NOISE for one in found)
    said = (
        f" Of them {counted(noise, 'ratio')} cannot be told from 1 over the replications."
        if all(one.verdict for one in found)
        else " One replication tells no noise: run.replications gives every ratio its interval."
    )
    steep = [one for one in found if one.on_a_cliff]
    if steep:
        said += (
            f" At {len(steep)} a limit of the SLO runs through the latencies (10 to 90% of requests keep "
            "them): there a small change of the limit changes the ratio."
        )
    return said


def handover_said(rows: Sequence[Row], axes: Sequence[str]) -> list[str]:
    """Returns a sentence a point; nothing where no pool has a role."""
    mine = [row for row in rows if is_number(row.get("link_out_busy"))]
    if len(mine) <= MANY:
        return [_said(row, axes) for row in mine]
    order = sorted(mine, key=lambda row: number(row, "ttft_transfer_ms") / number(row, "mean_ttft_ms"))
    return [
        f"{counted(len(mine), 'point')} hand KV over; the two in whose TTFT its way has the least share and "
        "the most:",
        *(_said(row, axes) for row in (order[0], order[-1])),
    ]


def _said(row: Row, axes: Sequence[str]) -> str:
    name = ", ".join(named(axis, row[axis]) for axis in axes) or "A first token"
    parts = [f"{number(row, f'ttft_{key}_ms'):,.1f} ms {what}" for key, what in PARTS]
    still = number(row, "prefill_stood_still")
    stood = (
        f"; replicas that compute prompts stood still {still:.1%} of the time, full of KV" if still else ""
    )
    lost = int(number(row, "kv_given_up")) if is_number(row.get("kv_given_up")) else 0
    given_up = (
        f"; {counted(lost, 'request')} computed the prompt again where it is decoded: prompts whose KV had "
        "come filled the pool there and none could go on, where vLLM stands still for good; give the decode "
        "pool more KV, or fewer max_num_seqs"
        if lost
        else ""
    )
    busy = f"{number(row, 'link_out_busy'):.0%} busy out and {number(row, 'link_in_busy'):.0%} in"
    return (
        f"{name}: of {number(row, 'mean_ttft_ms'):,.0f} ms TTFT {', '.join(parts)}; "
        f"{number(row, 'kv_gb'):.3f} GB a request, links {busy}{stood}{given_up}."
    )
