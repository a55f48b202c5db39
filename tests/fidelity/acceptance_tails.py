"""P99 of a request's rounds a token over the mean, at every K, predicted from what K = 1 showed alone.

    python tests/fidelity/acceptance_tails.py [--draws 20]

Replayed traces of Llama-3.1-8B: the family's law without this drafter (of n-gram, without its data set), the
share accepted at K = 1 and the concentration of the requests at K = 1. The measured P99 is that of 300 to 500
requests, so as many are drawn, 20 times; `90 % of draws` is what such a number of requests can show.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from acceptance_depth import Curve, curves, fitted, left_out

from specfleet.sim.speculation.depth import Depth, known
from specfleet.sim.speculation.processes import process
from specfleet.sim.speculation.spec import AcceptanceSpec

LEAST_TOKENS = 20
"""Shorter outputs are left out of the measured figures."""

Replayed: TypeAlias = Mapping[tuple[str, str, int], Mapping[str, str]]

_AT = ("min", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "max")
_SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


def tails(
    by_position: tuple[float, ...], concentration: float, lengths: npt.NDArray[np.int64], draws: int
) -> npt.NDArray[np.float64]:
    """P99 / mean of rounds a token over requests of these lengths, a draw each."""
    spec = AcceptanceSpec(by_position=by_position, concentration=concentration)
    found = []
    for seed in range(draws):
        drawn = process(spec, len(by_position), seed)
        ratios = []
        for request, tokens in enumerate(lengths.tolist()):
            accepted = np.frombuffer(drawn.accepted(request, 1, tokens), np.uint8)
            rounds = int(np.searchsorted(np.cumsum(accepted + 1), tokens)) + 1
            ratios.append(rounds / tokens)
        found.append(float(np.quantile(ratios, 0.99) / np.mean(ratios)))
    return np.array(found)


def _lengths(shared: Path, data_set: str, proposer: str) -> npt.NDArray[np.int64]:
    with (shared / "validation" / "acceptance_llama31_8b_lengths.csv").open(newline="") as file:
        row = next(
            r
            for r in csv.DictReader(file)
            if (r["dataset"], r["quantity"]) == (data_set, f"output_tokens_{proposer}_run")
        )
    n = int(row["requests"])
    tokens = np.interp((np.arange(n) + 0.5) / n, _SHARES, [float(row[at]) for at in _AT])
    return np.round(tokens[tokens >= LEAST_TOKENS]).astype(np.int64)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns 0, or 2 without the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=20)
    args = parser.parse_args(argv)
    shared = Path(os.environ.get("SPECFLEET_SHARED", Path(__file__).parents[2] / ".." / "shared"))
    if not (shared / "validation").is_dir():
        print(f"no measured curves at {shared}; set SPECFLEET_SHARED", file=sys.stderr)
        return 2
    with (shared / "validation" / "acceptance_llama31_8b.csv").open(newline="") as file:
        measured = {(r["proposer"], r["dataset"], int(r["K"])): r for r in csv.DictReader(file)}
    given = curves(shared)
    whole = fitted(given)
    errors: dict[str, list[float]] = {}
    inside: list[bool] = []
    print(f"{'proposer':9}{'data set':15}{'K':>2}{'measured':>10}{'from K = 1':>12}  90 % of draws   error")
    for scored, others in left_out(given):
        mine = [c for c in scored if c.drafter.endswith("Llama-3.1-8B")]
        if not mine:
            continue
        family = mine[0].family
        law = fitted(others, {name: one for name, one in whole.items() if name != family})[family]
        for curve in mine:
            for line in _rows(curve, known(law, curve.counts[:1]), shared, measured, args.draws):
                name, k, was, drawn = line
                low, mid, high = np.quantile(drawn, (0.05, 0.5, 0.95))
                error = mid / was - 1.0
                errors.setdefault(name, []).append(error)
                inside.append(bool(low <= was <= high))
                print(
                    f"{name:9}{curve.data_set:15}{k:>2}{was:>10.2f}{mid:>12.2f}  {low:.2f} .. {high:.2f}"
                    f"{100 * error:>+10.1f} %"
                )
    for name, off in errors.items():
        print(f"{name}: mean error {100 * np.abs(off).mean():.1f} %, bias {100 * np.mean(off):+.1f} %")
    print(f"inside 90 % of draws: {100 * np.mean(inside):.0f} %")
    return 0


def _rows(
    curve: Curve,
    depth: Depth,
    shared: Path,
    measured: Mapping[tuple[str, str, int], Mapping[str, str]],
    draws: int,
) -> Iterator[tuple[str, int, float, npt.NDArray[np.float64]]]:
    proposer = curve.drafter.partition(" ")[0]
    first = measured[proposer, curve.data_set, 1]
    concentration = float(first["beta_a"]) + float(first["beta_b"])
    lengths = _lengths(shared, curve.data_set, proposer)
    for k in (2, 3, 5, 8):
        was = float(measured[proposer, curve.data_set, k]["rounds_per_token_p99_over_mean"])
        yield proposer, k, was, tails(depth.by_position(k), concentration, lengths, draws)


if __name__ == "__main__":
    raise SystemExit(main())
