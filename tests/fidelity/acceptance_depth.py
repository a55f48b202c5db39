"""Fits the law of acceptance by depth to the shared curves, and scores it on curves it was not fitted to.

    python tests/fidelity/acceptance_depth.py [--constants]

Without an option: the leave-one-out tables. Whole drafters are left out; of a family with one drafter alone
(n-gram) its data sets, one by one. With `--constants`: what `sim/speculation/families.py` should hold.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from specfleet.sim.speculation.depth import CountedAt, Depth, known
from specfleet.sim.speculation.families import DrafterFamily

FAMILIES = {
    "draft_model": "draft models",
    "eagle": "EAGLE heads",
    "eagle3": "EAGLE heads",
    "mtp": "MTP modules",
    "dspark": "parallel drafters",
    "ngram": "n-gram look-up",
}
"""Method of the shared files -> family."""

BEFORE = (math.log(0.7), 1.3, -0.3, -0.1)
"""Where the fit starts."""

FEW = 2.0
"""Drafters' worth of scatter that a family is taken to have before its curves are seen ..."""

SCATTER = (0.4, 0.7, 0.2, 0.1)
WANDER = 0.1
"""... with these standard deviations."""

LOOK_UP = {"n-gram look-up": ((1.3, -1.5, 1.0, -0.3), (0.4, 2.0, 0.2, 0.1))}
"""A look-up has no draft in most rounds, which the first position says."""

APART = (0.3, 0.3, 0.1, 0.05)
"""Scatter between data sets of one drafter before any pair was seen, worth one pair."""


NOISE = 1.645 * 0.025
"""90 % of the scatter of a published length, as a share of accepted drafts: neighbours swap by it."""


@dataclass(frozen=True)
class Curve:
    """One drafter on one data set, at every K measured."""

    family: str
    drafter: str
    data_set: str
    counts: tuple[CountedAt, ...]

    @property
    def counted(self) -> bool:
        """Positions were counted, not only lengths."""
        return self.counts[0].by_position is not None


def curves(shared: Path) -> list[Curve]:
    """Every curve of the shared files: served runs pooled over loads, replayed traces, published lengths."""
    found: dict[tuple[str, str, str], dict[int, CountedAt]] = defaultdict(dict)
    served: dict[tuple[str, str, str, int], list[tuple[list[float], float]]] = defaultdict(list)
    for row in _rows(shared, "h100_vllm_specdec.csv"):
        if row["method"] != "none" and row["quality_flag"] == "ok":
            key = (row["method"], row["draft_model"].rpartition("/")[2], row["dataset"], int(row["K"]))
            served[key].append((_positions(row), float(row["draft_rounds"])))
    for (method, drafter, data_set, k), runs in served.items():
        weights = [rounds for _, rounds in runs]
        mean = np.average([steps for steps, _ in runs], axis=0, weights=weights)
        found[FAMILIES[method], drafter, data_set][k] = CountedAt(
            k, tuple(mean.tolist()), rounds=sum(weights)
        )
    for row in _rows(shared, "acceptance_llama31_8b.csv"):
        k, method = int(row["K"]), row["proposer"]
        name = (FAMILIES[method], f"{method} of Llama-3.1-8B", row["dataset"])
        found[name][k] = CountedAt(k, tuple(_positions(row)), rounds=float(row["rounds"]))
    for row in _rows(shared, "golden_acceptance_length.csv"):
        drafter, _, rule = row["variant"].partition("_probabilistic")
        name = (FAMILIES[row["method"]], drafter, f"thinking {row['thinking']}{', sampled' if rule else ''}")
        k = int(row["K"])
        found[name][k] = CountedAt(k, acceptance_length=float(row["acceptance_length"]))
    return [Curve(*name, tuple(by_k[k] for k in sorted(by_k))) for name, by_k in found.items()]


def _rows(shared: Path, name: str) -> Iterator[dict[str, str]]:
    with (shared / "validation" / name).open(newline="") as file:
        yield from csv.DictReader(file)


def _positions(row: dict[str, str]) -> list[float]:
    return [float(row[f"accept_pos{i}"]) for i in range(1, int(row["K"]) + 1)]


def fitted(
    given: Sequence[Curve], others: Mapping[str, DrafterFamily] | None = None
) -> dict[str, DrafterFamily]:
    """Families by expectation maximisation: each curve's likely values under the family, then the family's
    means and scatter over drafters, of whose data sets each counts for its share.

    Args:
        given: curves.
        others: families that are fitted already, to the same curves.
    """
    laws: dict[str, DrafterFamily] = dict(others or {})
    for name in sorted({curve.family for curve in given} - laws.keys()):
        mine = [curve for curve in given if curve.family == name]
        drafters = Counter(curve.drafter for curve in mine)
        share = np.array([1.0 / drafters[curve.drafter] for curve in mine])
        start, scatter = LOOK_UP.get(name, (BEFORE, SCATTER))
        wide = tuple(1.5 * each for each in scatter)
        law = DrafterFamily(name, len(drafters), start, wide, WANDER, ())  # type: ignore[arg-type]
        for _ in range(8):
            law = _renewed(law, [known(law, curve.counts) for curve in mine], share, scatter)
        unsure = math.sqrt(1.0 + 1.0 / len(drafters))
        laws[name] = replace(law, deviations=tuple(unsure * each for each in law.deviations))  # type: ignore[arg-type]
    return _with_data_sets(laws, given)


def _renewed(
    law: DrafterFamily, seen: Sequence[Depth], share: np.ndarray, scatter: Sequence[float]
) -> DrafterFamily:
    likely = np.array([depth.likely for depth in seen])
    unsure = np.array([np.diag(depth.covariance) for depth in seen])
    n = share.sum()
    means = share @ likely[:, :4] / n
    spread = share @ ((likely[:, :4] - means) ** 2 + unsure[:, :4])
    deviations = np.sqrt((FEW * np.square(scatter) + spread) / (FEW + max(n - 1.0, 0.0)))
    apart = likely[:, 4:] ** 2 + unsure[:, 4:]
    few = 4.0 * FEW
    wander = math.sqrt((few * WANDER**2 + share @ apart.sum(axis=1)) / (few + n * apart.shape[1]))
    return replace(law, means=tuple(means), deviations=tuple(deviations), wander=wander)


def _with_data_sets(laws: dict[str, DrafterFamily], given: Sequence[Curve]) -> dict[str, DrafterFamily]:
    """Adds the scatter between data sets of one drafter: of all that learn, and of look-ups."""
    out = {}
    for name, law in laws.items():
        look_up = name in LOOK_UP
        pairs, total = 1.0, np.diag(np.square(LOOK_UP[name][1] if look_up else APART))
        for drafter in sorted({c.drafter for c in given if (c.family in LOOK_UP) == look_up}):
            mine = [c for c in given if c.drafter == drafter]
            if len(mine) < 2:
                continue
            likely = np.array([known(laws[c.family], c.counts).likely[:4] for c in mine])
            off = likely - likely.mean(axis=0)
            total = total + off.T @ off
            pairs += len(mine) - 1
        out[name] = replace(law, between_data_sets=tuple(map(tuple, (total / pairs).tolist())))
    return out


def left_out(given: Sequence[Curve]) -> Iterator[tuple[list[Curve], list[Curve]]]:
    """(curves scored, curves fitted to): drafter by drafter; data sets where a family has one drafter."""
    drafters = {c.family: len({o.drafter for o in given if o.family == c.family}) for c in given}
    for drafter in sorted({c.drafter for c in given}):
        mine = [c for c in given if c.drafter == drafter]
        if drafters[mine[0].family] > 1:
            yield mine, [c for c in given if c.drafter != drafter]
        else:
            for one in mine:
                yield [one], [c for c in given if c is not one]


@dataclass(frozen=True)
class Scored:
    """A length predicted at one K from what was counted at another, or on another data set."""

    curve: Curve
    source: str
    seen: int
    k: int
    error: float
    inside: bool
    half_width: float
    carried_on: float


def scores(given: Sequence[Curve]) -> list[Scored]:
    """Every curve predicted from each of its K's, and from each other data set of its drafter."""
    found = []
    whole = fitted(given)
    for scored, others in left_out(given):
        family = scored[0].family
        law = fitted(others, {name: law for name, law in whole.items() if name != family})[family]
        for curve in scored:
            for one in curve.counts:
                seen = [one] if curve.counted else [c for c in curve.counts if c.k <= one.k]
                depth = known(law, seen)
                for to in curve.counts:
                    if to.k > one.k or (curve.counted and to.k < one.k):
                        found.append(_scored(curve, depth, "its own counts", one.k, to, _carried(seen, to.k)))
            for source in given:
                if source.drafter == curve.drafter and source is not curve:
                    depth = known(law, source.counts).elsewhere()
                    there = {c.k: _length(c) for c in source.counts}
                    found += [
                        _scored(curve, depth, "another data set", 0, to, there[to.k])
                        for to in curve.counts
                        if to.k in there
                    ]
    return found


def _scored(curve: Curve, depth: Depth, source: str, seen: int, to: CountedAt, carried_on: float) -> Scored:
    predicted, measured = depth.length(to.k), _length(to)
    low, high = predicted.low, predicted.high
    if not curve.counted:  # a published length has noise of its own
        low = predicted.value - math.hypot(predicted.value - low, NOISE * (measured - 1.0))
        high = predicted.value + math.hypot(high - predicted.value, NOISE * (measured - 1.0))
    return Scored(
        curve,
        source,
        seen,
        to.k,
        predicted.value / measured - 1.0,
        low <= measured <= high,
        (high - low) / 2.0 / measured,
        carried_on / measured - 1.0,
    )


def _length(count: CountedAt) -> float:
    return 1.0 + sum(count.by_position) if count.by_position is not None else count.acceptance_length or 1.0


def _carried(seen: Sequence[CountedAt], k: int) -> float:
    """The length at the last conditional acceptance, as it was before this law."""
    steps = list(seen[-1].by_position or np.maximum(np.diff([1.0, *map(_length, seen)]), 1e-3))
    while len(steps) < k:
        steps.append(steps[-1] * min(steps[-1] / (steps[-2] if len(steps) > 1 else 1.0), 1.0))
    return float(1.0 + sum(steps[:k]))


def table(found: Sequence[Scored]) -> list[str]:
    """The leave-one-out table."""
    heads = ("rows", 5), ("mean error", 12), ("bias", 8), ("worst", 8), ("inside 90 %", 13), ("+-", 7)
    lines = [" " * 44 + "".join(f"{name:>{width}}" for name, width in (*heads, ("carried on", 12)))]

    def line(name: str, rows: Sequence[Scored]) -> None:
        if rows:
            off = np.array([one.error for one in rows])
            inside = np.mean([one.inside for one in rows])
            width = np.mean([one.half_width for one in rows])
            naive = np.mean([abs(one.carried_on) for one in rows])
            lines.append(
                f"{name:44}{len(rows):>5}{100 * np.abs(off).mean():>10.2f} %{100 * off.mean():>+8.2f}"
                f"{100 * np.abs(off).max():>8.1f}{100 * inside:>11.0f} %{100 * width:>7.1f}"
                f"{100 * naive:>10.2f} %"
            )

    own = [one for one in found if one.seen]
    for counted, said in ((True, "positions counted"), (False, "published lengths")):
        line(f"{said}: between", [s for s in found if s.curve.counted == counted and 0 < s.k < s.seen])
        line(f"{said}: beyond", [s for s in found if s.curve.counted == counted and s.k > s.seen > 0])
        for k in sorted({one.seen for one in own}):
            line(f"  from K = {k}", [s for s in found if s.curve.counted == counted and s.k > s.seen == k])
    for family in sorted({one.curve.family for one in own}):
        line(f"{family}: between", [s for s in found if s.curve.family == family and 0 < s.k < s.seen])
        line(f"{family}: beyond", [s for s in found if s.curve.family == family and s.k > s.seen > 0])
    for drafter in sorted({one.curve.drafter for one in own}):
        line(f"  {drafter}", [s for s in found if s.curve.drafter == drafter and s.k > s.seen > 0])
    line(
        "from another data set: learned drafters",
        [s for s in found if not s.seen and s.curve.family not in LOOK_UP],
    )
    line(
        "from another data set: n-gram look-up",
        [s for s in found if not s.seen and s.curve.family in LOOK_UP],
    )
    line("all", found)
    for source in ("its own counts", "another data set"):
        by_drafter: dict[str, list[bool]] = defaultdict(list)
        for one in found:
            if one.source == source:
                by_drafter[one.curve.drafter].append(one.inside)
        share = np.mean([np.mean(inside) for inside in by_drafter.values()])
        lines.append(f"inside 90 % from {source}, {len(by_drafter)} drafters alike: {100 * share:.0f} %")
    return lines


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns 0, or 2 without the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--constants", action="store_true")
    args = parser.parse_args(argv)
    shared = Path(os.environ.get("SPECFLEET_SHARED", Path(__file__).parents[2] / ".." / "shared"))
    if not (shared / "validation").is_dir():
        print(f"no measured curves at {shared}; set SPECFLEET_SHARED", file=sys.stderr)
        return 2
    given = curves(shared)
    if args.constants:
        for law in fitted(given).values():
            numbers = (tuple(round(float(x), 3) for x in each) for each in (law.means, law.deviations))
            apart = tuple(tuple(round(float(x), 4) for x in row) for row in law.between_data_sets)
            print(law.name, law.drafters, *numbers, round(law.wander, 3), apart)
        return 0
    print("\n".join(table(scores(given))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
