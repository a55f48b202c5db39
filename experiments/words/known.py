"""How long the points of a run went on, and what is not known as well as was asked."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.experiments.run.known import AT_MOST, NOT_KNOWN
from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.schema.blocks.until import HalfWidths
from specfleet.experiments.words.values import named

NAMED = 6
"""Points of which it is said what is not known; of more, how many."""


def known_sentences(rows: Sequence[Row], axes: Sequence[str], wanted: HalfWidths) -> list[str]:
    """Returns how many requests the simulations had that went on until they were settled, and what is not
    known as well as asked where they were not; nothing where none went on.

    Args:
        rows: a row a point.
        axes: the keys that are swept.
        wanted: half-widths asked for.
    """
    grown = [row for row in rows if is_number(row.get(AT_MOST))]
    if not grown:
        return []
    counts = sorted({int(number(row, "num_prompts")) for row in grown})
    span = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    most = max(int(number(row, AT_MOST)) for row in grown)
    said = [f"Simulations went on for {span} requests, of {most:,} at most (run.at_most)."]
    short = [(_name(row, axes), str(row[NOT_KNOWN])) for row in grown if row.get(NOT_KNOWN)]
    if short:
        told = "; ".join(f"{name}{': ' if name else ''}{figures}" for name, figures in short[:NAMED])
        more = f"; and at {len(short) - NAMED} more points" if len(short) > NAMED else ""
        said.append(f"Not known as well as asked, {asked_for(wanted)}: {told}{more}.")
    return said


def asked_for(wanted: HalfWidths) -> str:
    """Returns the precision in words, such as `means within 2 %, P99 within 5 %`."""
    given = {name: width for name, width in wanted.model_dump().items() if width is not None}
    names = {"mean": "means"}
    return ", ".join(
        f"{names.get(key, key.upper())} within {100 * width:.3g} %" for key, width in given.items()
    )


def _name(row: Row, axes: Sequence[str]) -> str:
    return ", ".join(named(axis, row.get(axis)) for axis in axes)
