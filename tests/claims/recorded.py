"""Requests with the published quantiles of recorded ones, for `acceptance.replay`.

The traces themselves are not public with a licence; `acceptance_llama31_8b.csv` has their statistics. A
request draws its acceptance length from the quantiles, and at every output position a geometric number of
accepted drafts of that mean.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
MOST = 8
"""Drafts a position accepts at most: the deepest K of the traces."""


def statistics(shared: Path, dataset: str, k: int) -> Mapping[str, str]:
    """The row of the EAGLE traces of a data set at K."""
    return _row(shared, "acceptance_llama31_8b.csv", proposer="eagle", dataset=dataset, K=str(k))


def output_tokens(shared: Path, dataset: str, n: int) -> I64:
    """n output lengths, shortest first, at the published quantiles."""
    lengths = "acceptance_llama31_8b_lengths.csv"
    row = _row(shared, lengths, dataset=dataset, quantity="output_tokens_eagle_run")
    nodes = [float(row["min"]), *(float(row[f"p{p}"]) for p in PERCENTILES), float(row["max"])]
    return np.interp(_levels(n), [0, *PERCENTILES, 100], nodes).round().astype(np.int64)


def acceptance_lengths(row: Mapping[str, str], n: int) -> F64:
    """n requests' acceptance lengths, least first, at the published quantiles."""
    nodes = [float(row[f"request_al_p{p}"]) for p in PERCENTILES]
    return np.asarray(np.interp(_levels(n), PERCENTILES, nodes))


def write_traces(path: Path, lengths: F64, tokens: I64, k: int, seed: int) -> Path:
    """Writes a trace a request: accepted drafts by output position, of these means at K."""
    rng = np.random.default_rng(seed)
    lines = []
    for length, n in zip(lengths.tolist(), tokens.tolist(), strict=True):
        accepted = np.minimum(rng.geometric(1 - conditional(length, k), n) - 1, MOST)
        lines.append(json.dumps(accepted.tolist()))
    path.write_text("\n".join(lines) + "\n")
    return path


def conditional(length: float, k: int) -> float:
    """The conditional acceptance whose acceptance length at K is this, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        below = sum(middle**i for i in range(k + 1)) < length
        low, high = (middle, high) if below else (low, middle)
    return low


def _levels(n: int) -> F64:
    """Percentiles of n requests in equal steps."""
    return np.asarray(100 * (np.arange(n) + 0.5) / n)


def _row(shared: Path, name: str, **where: str) -> Mapping[str, str]:
    with (shared / "validation" / name).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if all(row[k] == v for k, v in where.items())]
    assert len(rows) == 1
    return rows[0]
