"""What failures of replicas, and spot instances that were taken, did, in a sentence a point."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.costs.ends import ends_said
from specfleet.experiments.words.values import named, on_average


def failures_said(rows: Sequence[Row], axes: Sequence[str]) -> list[str]:
    """Returns a sentence a point, of many those of the ends; nothing where no replica may fail."""
    told = [row for row in rows if is_number(row.get("failures"))]
    return ends_said(told, "availability", lambda row: _said(row, axes))


def _said(row: Row, axes: Sequence[str]) -> str:
    name = ", ".join(named(axis, row[axis]) for axis in axes) or "Replicas"
    mean = {
        key: number(row, key) for key in ("failures", "retried", "lost", "recomputed_tokens", "wasted_tokens")
    }
    taken = number(row, "interruptions") if is_number(row.get("interruptions")) else 0.0
    if not mean["failures"] and not taken:
        return (
            f"{name}: no replica failed{'' if row.get('interruptions') is None else ', and none was taken'}."
        )
    what = [on_average(mean["failures"], "failure")] if mean["failures"] else []
    if taken:
        drained = number(row, "drained") / taken
        instances = on_average(taken, "spot instance").removesuffix(" on average")
        what.append(f"{instances} taken, {drained:.0%} of them empty by then")
    plural = "" if round(mean["retried"]) == 1 else "s"
    said = [
        f"{name}: {', '.join(what)}, {number(row, 'availability'):.2%} of "
        f"replica time available; {mean['retried']:,.0f} request{plural} sent anew, "
        f"{mean['lost']:,.0f} lost, {mean['recomputed_tokens']:,.0f} tokens of KV lost"
    ]
    if not is_number(row.get("gave_up")):  # else the clients' sentence says it, of both
        said[0] += f", {mean['wasted_tokens']:,.0f} of output thrown away"
    if is_number(row.get("recovery_s")):
        said.append(f"the last request of a failure ended {number(row, 'recovery_s'):.1f} s after it")
    during, otherwise = row.get("p99_ttft_recovering_ms"), row.get("p99_ttft_otherwise_ms")
    if is_number(during) and is_number(otherwise):
        tail = number(row, "p99_ttft_recovering_ms"), number(row, "p99_ttft_otherwise_ms")
        said.append(f"P99 TTFT {tail[0]:,.0f} ms while the fleet recovered, {tail[1]:,.0f} ms otherwise")
    elif row.get("recovering_requests"):
        said.append("in some seeds nothing was sent while the fleet recovered, or all then: no P99 of either")
    return "; ".join(said) + "."
