"""Every figure that is asked of the physics, with its bar and what is measured now.

    python tests/fidelity/must_shows.py [--seeds 1] [--jobs 2] [--only memory steps experts overall]

Errors are of `specfleet validate` over the measured tables, absolute, in percent; the bars are those that
were set before. What a missed one owes to stands in docs/trust.md. Acceptance that was not counted has its
own tables: `acceptance_depth.py`, `acceptance_tails.py`.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from specfleet.experiments.validate.points import SPEEDUP
from specfleet.experiments.validate.runs import Scored, predict_all
from specfleet.experiments.validate.score import by_load, ratios
from specfleet.experiments.validate.tables import read_csv

RECORDS = (
    *("GPUSTACK-gpt-oss-20b-h100", "GPUSTACK-glm-4.5-air-h100", "GPUSTACK-glm-4.x-h100"),
    *("GPUSTACK-glm-4.x-h200", "GPUSTACK-deepseek-r1-h200", "INFX-DSR1-H200", "INFX-H200-MINIMAX-M2.5"),
)
SCOUT = "Llama-4-Scout"
MANY_ROWS = 128
"""Beyond so many rows a step the target's GEMMs are stairs."""


class Shown(NamedTuple):
    """What is asked, its bar and what is measured; `least`: the bar is a lower one."""

    what: str
    bar: float
    now: float
    least: bool = False

    def line(self) -> str:
        """One line of the table."""
        met = self.now >= self.bar if self.least else round(self.now, 1) <= self.bar
        return f"{self.what:70s} {self.bar:6.4g} {self.now:7.1f}  {'met' if met else 'MISSED'}"


class Tables:
    """The measured tables, each predicted once."""

    def __init__(self, folder: Path, seeds: int, jobs: int) -> None:
        self.folder, self.seeds, self.jobs = folder, seeds, jobs
        self.freely = cache(self._freely)
        self.scored = cache(self._scored)
        self.record = cache(self._record)

    def _scored(self, name: str, frozen: bool = False) -> tuple[Scored, ...]:
        points = read_csv(self.folder / name, frozen=frozen).points
        return tuple(predict_all(points, self.seeds, None, self.jobs, lambda done: None))

    def _freely(self, name: str) -> tuple[Scored, ...]:
        points = read_csv(self.folder / name, frozen=False).points
        return tuple(predict_all(points, self.seeds, None, self.jobs, lambda done: None, free=True))

    def _record(self, record: str) -> tuple[Scored, ...]:
        with (self.folder / "serving_points.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        kept = [row for row in rows if row[0].startswith(record)]
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "serving_points.csv"
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([rows[0], *kept])
            points = read_csv(path, frozen=False).points
        return tuple(predict_all(points, self.seeds, None, self.jobs, lambda done: None))


def errors(scored: Sequence[Scored], metric: str) -> np.ndarray:
    """Absolute errors of a metric, of the points that have it."""
    found = [one.errors() for one in scored if not one.failure]
    return np.abs([error[metric] for error in found if metric in error])


def steady(scored: Sequence[Scored], metric: str) -> np.ndarray:
    """As `errors`, without the TTFT and throughput of runs that are a start and an end."""
    timed = metric.startswith("ttft") or metric == "output_throughput"
    return errors([one for one in scored if not (timed and one.point.transient)], metric)


def memory(tables: Tables) -> Iterator[Shown]:
    """The KV limit and what shares it."""
    scored = tables.scored("h100_vllm_specdec.csv")
    high, change = by_load(scored, True), ratios(scored)["tpot_p99_ms"]
    yield Shown("KV pool, worst of all servers, %", 0.5, float(errors(scored, "kv_pool_tokens").max()))
    seen = f"slow-downs of P99 TPOT seen, of {change['slowdowns']}"
    yield Shown(seen, change["slowdowns"], change["slowdowns_right"], least=True)
    yield Shown("mean TPOT above c = 64, mean error, %", 2.5, float(steady(high, "tpot_mean_ms").mean()))
    yield Shown("mean TTFT above c = 64, mean error, %", 4.0, float(steady(high, "ttft_mean_ms").mean()))


def steps(tables: Tables) -> Iterator[Shown]:
    """Verification time by rows."""
    scored = tables.scored("h100_vllm_specdec.csv")
    many = [one for one in scored if (one.point.max_concurrency or 0) * (1 + one.point.k) > MANY_ROWS]
    off = errors(many, "itl_median_ms")
    yield Shown(f"median ITL of the {len(off)} runs above 128 rows, mean error, %", 2.0, float(off.mean()))
    yield Shown("the same, worst, %", 7.0, float(off.max()))
    plain = [one for one in scored if not one.point.k and one.point.max_concurrency == 256]
    yield Shown("c = 256 plain, mean TPOT, %", 2.5, float(errors(plain, "tpot_mean_ms").max()))


def experts(tables: Tables) -> Iterator[Shown]:
    """Mixtures, by record; gains of EAGLE-3; TensorRT-LLM's 8B."""
    for record in RECORDS:
        scored = tables.record(record)
        yield Shown(
            f"{record}, throughput, median error, %",
            15.0,
            float(np.median(errors(scored, "output_throughput"))),
        )
        timed = errors(scored, "tpot_mean_ms")
        name = "mean" if timed.size else "median"
        off = timed if timed.size else errors(scored, "tpot_median_ms")
        yield Shown(f"{record}, {name} TPOT, median error, %", 15.0, float(np.median(off)))
    bundle = tables.record("SPECBUNDLE")
    rows = [one for one in bundle if SPEEDUP in one.errors()]
    others = [one for one in rows if SCOUT not in one.point.placement.model.name]
    yield Shown(
        f"SpecBundle, {len(rows)} speed-ups, mean error, %", 12.0, float(errors(rows, SPEEDUP).mean())
    )
    yield Shown(f"the same without {SCOUT}, {len(others)}, %", 12.0, float(errors(others, SPEEDUP).mean()))
    served = [one for one in tables.scored("served_tpot.csv") if "trtllm" in one.point.campaign]
    small = errors([one for one in served if "8b" in one.point.placement.model.name.lower()], "tpot_mean_ms")
    yield Shown(f"TensorRT-LLM 8B, worst of {small.size} rows, %", 15.0, float(small.max()))
    yield Shown("the same, rows above 15 %", 0.0, float((small > 15.0).sum()))


OVERALL = (
    ("tpot_mean_ms", "mean TPOT", 1.2, 2.5),
    ("tpot_p99_ms", "P99 TPOT", 2.5, 2.5),
    ("ttft_mean_ms", "mean TTFT", 2.5, 4.0),
    ("output_throughput", "throughput", 1.3, 1.3),
)
FROZEN = (2.0, 3.0)
WORSE_FREELY = 4.0 / 3.0
"""Times the error with matched requests and luck: with both drawn as `specfleet run` draws them."""


def overall(tables: Tables) -> Iterator[Shown]:
    """All shared rows of the table with and without speculation."""
    scored = tables.scored("h100_vllm_specdec.csv")
    for metric, name, low, high in OVERALL:
        for where, bar, above in (("up to", low, False), ("above", high, True)):
            off = steady(by_load(scored, above), metric)
            yield Shown(f"{name} {where} c = 64, mean error, %", bar, float(off.mean()))
    yield from drawn_freely(scored, tables.freely("h100_vllm_specdec.csv"))
    change = ratios(scored)["output_throughput"]
    seen = f"slow-downs of throughput seen, of {change['slowdowns']}"
    yield Shown(seen, change["slowdowns"], change["slowdowns_right"], least=True)
    frozen = tables.scored("h100_vllm_specdec.csv", True)
    for where, bar, above in (("up to", FROZEN[0], False), ("above", FROZEN[1], True)):
        off = errors(by_load(frozen, above), "tpot_mean_ms")
        yield Shown(f"mean TPOT {where} c = 64, published constants only, %", bar, float(off.mean()))


def drawn_freely(matched: Sequence[Scored], free: Sequence[Scored]) -> Iterator[Shown]:
    """Mean errors with lengths and luck drawn (`validate --free`), beside a third more than when matched."""
    for metric, name, *_ in OVERALL:
        for where, above in (("up to", False), ("above", True)):
            bar = WORSE_FREELY * float(steady(by_load(matched, above), metric).mean())
            off = float(steady(by_load(free, above), metric).mean())
            yield Shown(f"{name} {where} c = 64, drawn freely, mean error, %", round(bar, 1), off)


PARTS: dict[str, Callable[[Tables], Iterator[Shown]]] = {
    "memory": memory,
    "steps": steps,
    "experts": experts,
    "overall": overall,
}


def main(argv: list[str] | None = None) -> int:
    """Prints the table; 2 without the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    args = parser.parse_args(argv)
    shared = Path(os.environ.get("SPECFLEET_SHARED", Path(__file__).parents[2] / ".." / "shared"))
    if not (shared / "validation").is_dir():
        print(f"no measured rows at {shared}; set SPECFLEET_SHARED", file=sys.stderr)
        return 2
    tables = Tables(shared / "validation", args.seeds, args.jobs)
    print(f"{'':70s} {'bar':>6s} {'now':>7s}")
    for part in args.only:
        for shown in PARTS[part](tables):
            print(shown.line(), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
