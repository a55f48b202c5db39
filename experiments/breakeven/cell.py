"""One search: from which acceptance speculation pays at one load, draft length and seed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from specfleet import __version__
from specfleet.experiments.breakeven.search import QUESTIONS, Curve, Figures, Root
from specfleet.experiments.point.build import counted_requests, requests
from specfleet.experiments.point.built import Built, build
from specfleet.experiments.run.inputs import input_files
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.simulation import RunResult, simulate
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.workloads.requests import RequestTable


@dataclass(frozen=True)
class Cell:
    """One search: a point, a seed, and the run without drafts that it is compared with.

    Args:
        config: the point.
        seed: of requests and luck.
        load: concurrency or request rate.
        k: drafts a round; 0 is the plain run.
        tolerance: width to which a crossing is bracketed.
        plain: figures of the plain run; empty for the plain run itself.
        questions: that it asks.
    """

    config: Experiment
    seed: int
    load: float
    k: int
    tolerance: float
    plain: Figures = field(default_factory=dict)
    questions: tuple[str, ...] = tuple(QUESTIONS)

    @property
    def id(self) -> str:
        """Names it in progress and failures."""
        return f"load={self.load:g},K={self.k},seed={self.seed}"

    @property
    def key(self) -> str:
        """A name that two searches share only if they are the same in all that matters, files too."""
        config = self.config.model_dump_json(exclude={"name", "seed", "replications", "report", "claim"})
        files = input_files(self.config)
        asked = "" if self.questions == tuple(QUESTIONS) else f" {self.questions}"
        text = f"{__version__} {config} {self.seed} {self.tolerance} {sorted(files.items())}{asked}"
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Found:
    """What a cell found.

    Attributes:
        own: figures at the file's own acceptance; of the plain run for K = 0.
        alphas: conditional acceptances simulated, ascending; none for K = 0.
        figures: at each of `alphas`.
        roots: question -> where it starts to pay; questions without a figure are left out.
    """

    own: Figures
    alphas: tuple[float, ...] = ()
    figures: tuple[Figures, ...] = ()
    roots: Mapping[str, Root] = field(default_factory=dict)

    def to_json(self) -> str:
        """Returns it as text."""
        return json.dumps(dataclasses.asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Found:
        """Returns what `to_json` wrote, to the last bit."""
        read = json.loads(text)
        roots = {name: Root(**root) for name, root in read["roots"].items()}
        return cls(read["own"], tuple(read["alphas"]), tuple(read["figures"]), roots)


def assumed(spec: AcceptanceSpec, alpha: float) -> AcceptanceSpec:
    """Returns the process searched over: one conditional acceptance at all positions, the file's spread.

    How often an n-gram drafter proposes stays; decay, context multiplier and low atom go.
    """
    return AcceptanceSpec(
        conditional_acceptance=alpha,
        concentration=spec.concentration,
        proposal_probability=spec.proposal_probability,
        proposal_persistence=spec.proposal_persistence,
        synthetic=spec.synthetic,
        source="searched",
    )


def search(cell: Cell) -> Found:
    """Runs a cell: the plain run alone, or the file's own acceptance and all roots."""
    built, table = build(cell.config), requests(cell.config, cell.seed)

    def at(alpha: float) -> Figures:
        processes = {name: assumed(spec, alpha) for name, spec in built.scenario.acceptance.items()}
        return _figures(built, table, cell.seed, processes)

    own = _figures(built, table, cell.seed, built.scenario.acceptance)
    if not cell.k:
        return Found(own)
    curve = Curve(at, cell.plain, cell.tolerance)
    roots = {name: root for name in cell.questions if (root := curve.root(name)) is not None}
    points = sorted(curve.points)
    return Found(own, tuple(map(curve.alpha, points)), tuple(curve.points[i] for i in points), roots)


def _figures(
    built: Built, table: RequestTable, seed: int, acceptance: Mapping[str, AcceptanceSpec]
) -> Figures:
    """Simulates once and keeps the metrics of `QUESTIONS`, the acceptance length, batch and context."""
    result = simulate(dataclasses.replace(built.scenario, acceptance=acceptance), table, seed)
    bench = benchmark(result, built.slo)
    numbers = bench.numbers()
    kept = {metric: numbers.get(metric) for metric, _ in QUESTIONS.values()}
    return kept | {"acceptance_length": bench.acceptance_length} | _batches(result)


def _batches(result: RunResult) -> dict[str, float | None]:
    """Returns `batch` (requests scheduled in a step) and `context` (KV tokens of a decoding request)."""
    rows = result.iterations
    decoding = int(rows["decode_sequences"].sum())
    scheduled = rows["decode_sequences"] + rows["prefill_sequences"]
    return {
        "batch": float(scheduled.mean()) if len(scheduled) else None,
        "context": float(rows["kv_tokens"].sum() / decoding) if decoding else None,
    }


def weight(cell: Cell) -> float:
    """Returns the rough size of a search.

    A request costs its own handling and its share of the steps, fewer in larger batches.
    """
    workload = cell.config.workload
    requests = counted_requests(workload) or 1
    return requests * (1.0 + 5.0 / (workload.max_concurrency or 64))
