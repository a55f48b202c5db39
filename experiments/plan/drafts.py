"""Speculate or not, in words: gains, the best K by load, where drafting stops paying."""

from __future__ import annotations

import math
from collections.abc import Iterator

from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.predicted import chance_lines
from specfleet.experiments.plan.speculation import HOTTEST, crossover, fall_back_temperature, gains
from specfleet.experiments.run.gains import judge
from specfleet.sim.statistics.verdict import LEAST_GAIN

AIMS = {"headroom": "most room", "throughput": "largest rate"}


def speculation_lines(this: Planned) -> Iterator[str]:
    """Speculate or not: gains, best K by load, crossover, break-even."""
    drafting, plain = this.drafting, this.plain
    assert this.winner is not None
    if drafting is None or plain is None:
        yield "Speculate or not: nothing to compare."
        return
    said = "yes" if this.winner.candidate.k else "no"
    aim = "" if this.plan.objective == "cost" else f", for the {AIMS[this.plan.objective]}"
    yield f"Speculate: {said}{aim}. {drafting.method} K = {drafting.k} against plain at the planned load:"
    for name, found in gains(this.runs[drafting.id], this.runs[plain.id]).items():
        if found is not None:
            bounded = math.isfinite(found.high) and found.low > 0.0
            bounds = f" ({found.low:.2f} to {found.high:.2f})" if bounded else ""
            verdict = judge(found, LEAST_GAIN)
            told = bounded and (found.enough or verdict != "not settled")
            why = "" if told else ", too few requests to bound it"
            yield f"  {name} {found.value:.2f}x{bounds}: {verdict}{why}"
    if this.loads:
        best = ", ".join(f"{load.concurrency}: {load.by_throughput}" for load in this.loads)
        yield f"  best K by requests in flight of a replica (throughput): {best}"
        best = ", ".join(f"{load.concurrency}: {load.by_p99}" for load in this.loads)
        yield f"  best K by requests in flight of a replica (P99 TPOT): {best}"
        yield f"  {_crossovers(this, drafting.k)}"
    if this.break_even is not None:
        yield f"  {break_even_line(this)}"
        yield from (
            f"  {line}" for line in chance_lines(drafting, this.break_even, this.runs[drafting.id][0])
        )
    shape = "drafts are chains (vLLM V1 verifies no trees)"
    if drafting.config.serve.draft_tree is not None:
        shape = f"drafts are a tree of {drafting.k} nodes, {drafting.depth} deep"
    yield f"  {shape}; {temperature_line(this)}"


def _crossovers(this: Planned, k: int) -> str:
    words = []
    for metric, name in (("output_throughput", "throughput"), ("p99_tpot_ms", "P99 TPOT")):
        at = crossover(this.loads, k, metric)
        if at is None:
            words.append(f"on {name} at every load up to {this.loads[-1].concurrency}")
        else:
            words.append(f"on {name} up to about {at:.0f} in flight" if at else f"on {name} at no load")
    return f"K = {k} pays {' and '.join(words)}"


def break_even_line(this: Planned) -> str:
    """Returns where drafting stops paying, and the gate."""
    found, drafting = this.break_even, this.drafting
    assert found is not None and drafting is not None
    if found.factor is None:
        return "at the stated acceptance it does not pay on mean and P99 TPOT both: leave it off"
    gate = (
        f"switch off below {found.gate_length:.2f} tokens a round (conditional acceptance "
        f"{found.gate_conditional:.2f}: break-even + 0.1)"
    )
    if not found.factor:
        return f"it pays even with hardly a draft accepted; {gate}"
    return (
        f"break-even at {found.acceptance_length:.2f} tokens a round ({100 * found.factor:.0f} % of the "
        f"stated conditional acceptance); {gate}"
    )


def temperature_line(this: Planned) -> str:
    """Returns up to which temperature to draft, as far as it is known."""
    found, drafting = this.break_even, this.drafting
    if found is None or drafting is None or found.factor is None:
        return "temperature: nothing to fall back from"
    above = fall_back_temperature(drafting, found, this.runs[drafting.id][0])
    if above == math.inf:
        return f"by the file's temperature law it pays up to a temperature of {HOTTEST:g}"
    if above is not None:
        return f"fall back to plain at temperatures from {above:g} (by the file's temperature law)"
    return (
        "fall back to plain above the temperature at which your measured acceptance length falls below "
        f"{found.gate_length:.2f} (the file has no temperature law)"
    )
