"""The bill by class on a run's page."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.experiments.page.html import Html, TableCell, join, listed, table
from specfleet.experiments.page.sections import axis_cell
from specfleet.experiments.run.bill import LATENCIES
from specfleet.experiments.run.results import Row
from specfleet.experiments.words.by_class import HEADS, SAID, bill_sentences, of_pair, pairs_of
from specfleet.experiments.words.names import noun


def bill_section(rows: Sequence[Row], axes: Sequence[str]) -> Html | None:
    """Returns the bill by class with its sentences; None where none was asked for."""
    billed = [(row, whose, who) for row in rows for whose, who in pairs_of(row)]
    if not billed:
        return None
    body = []
    for row, whose, who in billed:
        cells = [TableCell(text) for text in of_pair(row, whose, who)]
        body.append([*(axis_cell(row.get(axis)) for axis in axes), TableCell(whose), TableCell(who), *cells])
    figures = [heading for latency in LATENCIES for heading in (HEADS[latency], f"{SAID[latency]}, x")]
    headings = [*map(noun, axes), "drafts of", "seen by", *figures]
    caption = "Bill by class: P99 without -> with the drafts of a class; above 1 is paid for them"
    made = table(caption, headings, body, row_headings=len(axes) + 2)
    return join([made, listed(bill_sentences(rows, axes))])
