"""What failures of replicas, and spot instances that were taken, did, in a sentence a point."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.values import counted, named


def failures_said(rows: Sequence[Row], axes: Sequence[str]) -> list[str]:
    """Returns a sentence a point; nothing where no replica may fail."""
    return [_said(row, axes) for row in rows if is_number(row.get("failures"))]


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
    what = [counted(round(mean["failures"]), "failure")] if mean["failures"] else []
    if taken:
        drained = number(row, "drained") / taken
        what.append(f"{counted(round(taken), 'spot instance')} taken, {drained:.0%} of them empty by then")
    said = [
        f"{name}: {', '.join(what)}, {number(row, 'availability'):.2%} of "
        f"replica time available; {mean['retried']:,.0f} requests sent anew, {mean['lost']:,.0f} lost, "
        f"{mean['recomputed_tokens']:,.0f} tokens of KV lost, "
        f"{mean['wasted_tokens']:,.0f} of output thrown away"
    ]
    if is_number(row.get("recovery_s")):
        said.append(f"the last request of a failure ended {number(row, 'recovery_s'):.1f} s after it")
    during, otherwise = row.get("p99_ttft_recovering_ms"), row.get("p99_ttft_otherwise_ms")
    if is_number(during) and is_number(otherwise):
        tail = number(row, "p99_ttft_recovering_ms"), number(row, "p99_ttft_otherwise_ms")
        said.append(f"P99 TTFT {tail[0]:,.0f} ms while the fleet recovered, {tail[1]:,.0f} ms otherwise")
    return "; ".join(said) + "."
