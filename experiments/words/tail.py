"""What drives the tail: the P99 request's time per token beside the median's, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specfleet.experiments.run.files import read_object
from specfleet.experiments.run.folder import folders_of
from specfleet.experiments.run.results import Row, number
from specfleet.experiments.words.values import named, text

WORDS = {
    "decode_ms": "slower plain steps",
    "low_acceptance_ms": "fewer drafts accepted than on average",
    "others_prefill_ms": "prompts of other requests in its steps",
    "verify_ms": "verification",
    "draft_ms": "drafting",
    "host_ms": "host time",
    "paused_ms": "steps it had no part in (preempted, left out of a batch, waiting for a stage, or lost with "
    "a replica)",
}

Split = Mapping[str, Mapping[str, float]]


def read_split(folder: Path, point: str) -> Split | None:
    """Returns the TPOT split of a point, the mean over its seeds; None if it has none."""
    return _mean([found.get("tpot_split") for found in _engines(folder, point)])


def read_splits_by_class(folder: Path, point: str) -> dict[str, Split]:
    """Returns the TPOT split of each traffic class at a point; empty where there is one class."""
    each = [found.get("tpot_split_by_class") for found in _engines(folder, point)]
    mine = [splits for splits in each if isinstance(splits, dict)]
    names = dict.fromkeys(name for splits in mine for name in splits)
    found = {name: _mean([splits.get(name) for splits in mine]) for name in names}
    return {name: split for name, split in found.items() if split is not None}


def _engines(folder: Path, point: str) -> list[Mapping[str, Any]]:
    paths = (each / "engine.json" for each in folders_of(folder, point))
    return [read_object(path) for path in paths if path.is_file()]


def _mean(found: Sequence[object]) -> Split | None:
    splits = [split for split in found if isinstance(split, dict) and split]
    if not splits:
        return None
    return {
        quantile: {
            part: sum(split[quantile][part] for split in splits) / len(splits) for part in splits[0][quantile]
        }
        for quantile in splits[0]
    }


def driver(split: Split) -> tuple[str, float]:
    """Returns the part that grows most from the median to the P99 request, and its share of the growth."""
    grown = {part: split["p99"][part] - split["p50"][part] for part in WORDS}
    growth = split["p99"]["tpot_ms"] - split["p50"]["tpot_ms"]
    part = max(grown, key=lambda name: grown[name])
    return part, grown[part] / growth if growth > 0 else 0.0


def tail_sentence(label: str, split: Split) -> str:
    """Says what drives the tail of a point."""
    part, share = driver(split)
    median, p99 = split["p50"]["tpot_ms"], split["p99"]["tpot_ms"]
    if p99 < 1.02 * median:
        return f"{label}: the P99 request takes {p99:.1f} ms a token, hardly more than the median."
    return (
        f"{label}: the P99 request takes {p99:.1f} ms a token, the median {median:.1f}; "
        f"{min(share, 1.0):.0%} of the difference is {WORDS[part]}."
    )


def at_highest_load(folder: Path, rows: list[Row], x: str, lines: str, axes: Sequence[str] = ()) -> list[str]:
    """Returns a sentence for each line at the largest x that was run.

    Args:
        folder: of the run.
        rows: its points.
        x, lines: axes.
        axes: all of them; where a line has several points there, the others tell them apart.
    """
    last = max(number(row, x) for row in rows)
    there = [row for row in rows if number(row, x) == last]
    once = len({repr(row[lines]) for row in there}) == len(there)
    others = [] if once else [axis for axis in axes if axis not in (x, lines)]
    said = []
    for row in there:
        split = read_split(folder, str(row["point"]))
        if split is not None:
            name = "K" if lines.endswith("num_speculative_tokens") else lines.rpartition(".")[2]
            label = f"{name} = {text(row[lines])} at {x.rpartition('.')[2]} {last:g}"
            label = ", ".join([label, *(named(axis, row[axis]) for axis in others)])
            said.append(tail_sentence(label, split))
            of_classes = read_splits_by_class(folder, str(row["point"]))
            said += [tail_sentence(f"{label}, {one}", mine) for one, mine in of_classes.items()]
    return said
