"""Where the time to first tokens went where KV is handed over, in a sentence a point."""

from __future__ import annotations

from collections.abc import Sequence

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
    busy = f"{number(row, 'link_out_busy'):.0%} busy out and {number(row, 'link_in_busy'):.0%} in"
    return (
        f"{name}: of {number(row, 'mean_ttft_ms'):,.0f} ms TTFT {', '.join(parts)}; "
        f"{number(row, 'kv_gb'):.3f} GB a request, links {busy}{stood}."
    )
