"""What the readers of servers' logs have in common: the part of a log under its full load, as one result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specfleet.experiments.tools.file import Unreadable

DIGITS = 15
"""Of a number in a log; a longer one is none."""

_FULL = 0.9
"""A line shows the load if it runs this share of the most sequences that any line runs."""


@dataclass(frozen=True)
class LogLine:
    """One line of a log about all that runs.

    Args:
        engine: which of several engines writes it.
        running, waiting: sequences.
        throughput: output tokens/s since the line before.
        acceptance_length: tokens a round, or None.
    """

    engine: str
    running: float
    waiting: float
    throughput: float
    acceptance_length: float | None = None


def under_load(moments: Sequence[LogLine], what: str) -> tuple[dict[str, object], str]:
    """Returns figures of the lines under full load, and what was read, in words.

    By Little's law time per output token is sequences running over tokens a second; concurrency is what ran
    and waited. Engines are added up, lines of one are taken by their medians.

    Raises:
        Unreadable: if no line shows anything running.
    """
    busy = [moment for moment in moments if moment.running > 0 and moment.throughput > 0]
    if not busy:
        raise Unreadable(f"no {what} of a busy server; give the log of a measurement")
    chosen: list[LogLine] = []
    running = waiting = throughput = 0.0
    for engine in dict.fromkeys(moment.engine for moment in busy):
        mine = [moment for moment in busy if moment.engine == engine]
        most = max(moment.running for moment in mine)
        full = [moment for moment in mine if moment.running >= _FULL * most]
        chosen += full
        running += float(np.median([moment.running for moment in full]))
        waiting += float(np.median([moment.waiting for moment in full]))
        throughput += float(np.median([moment.throughput for moment in full]))
    values: dict[str, object] = {
        "output_throughput": throughput,
        "mean_tpot_ms": 1e3 * running / throughput,
        "max_concurrency": max(1, round(running + waiting)),
    }
    lengths = [(m.acceptance_length, m.throughput) for m in chosen if m.acceptance_length is not None]
    if lengths:
        values["spec_decode_acceptance_length"] = float(
            np.average([length for length, _ in lengths], weights=[weight for _, weight in lengths])
        )
    said = (
        f"medians of {len(chosen)} of {len(busy)} lines, those under full load; TPOT: sequences over tokens/s"
    )
    return values, said


def float_of(text: str | None) -> float | None:
    """Returns a number of a log; None where there is none, or none of a length that a log prints."""
    if text is None or len(text) > DIGITS:
        return None
    try:
        return float(text)
    except ValueError:
        return None
