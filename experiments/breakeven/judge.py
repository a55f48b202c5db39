"""What a load and K gain at the file's own acceptance: the verdicts of a run, until they are settled.

Ratios, intervals, verdicts and bands are those of `specfleet run` (`run.gains`, `run.band`), on the same
requests and luck. Where the file does not say how many requests there are, a load and K go on, with the plain
run beside them, until every verdict is settled or `run.at_most` is reached.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from specfleet import __version__
from specfleet.experiments.load.sweep import Point
from specfleet.experiments.point.build import counted_requests, requests
from specfleet.experiments.point.built import build
from specfleet.experiments.run.band import bands
from specfleet.experiments.run.gains import GOODPUT, columns, goodput
from specfleet.experiments.run.growth import Together, unsettled
from specfleet.experiments.run.inputs import input_files
from specfleet.experiments.run.judged import Requests
from specfleet.experiments.run.known import AT_MOST
from specfleet.experiments.run.results import Row, means, speedups
from specfleet.experiments.run.traffic import Served, is_open
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.simulation import simulate
from specfleet.sim.statistics.stopping import Looked, go_on


@dataclass(frozen=True)
class Asked:
    """A load and K, and the plain run at the same load.

    Args:
        point, plain: of the grid.
        seeds: of requests and luck.
        load: concurrency or request rate.
        k: drafts a round.
        least_gain: what a ratio must exceed 1 by to count.
    """

    point: Point
    plain: Point
    seeds: tuple[int, ...]
    load: float
    k: int
    least_gain: float

    @property
    def id(self) -> str:
        """Names it in progress and failures."""
        return f"load={self.load:g},K={self.k}"

    @property
    def key(self) -> str:
        """A name that two share only if they are the same in all that matters, files too."""
        said = {"name", "seed", "replications", "report", "claim"}
        configs = [one.config.model_dump_json(exclude=said) for one in (self.point, self.plain)]
        files = sorted(input_files(self.point.config).items())
        text = f"{__version__} verdict {configs} {self.seeds} {self.least_gain} {files}"
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Verdicts:
    """What was found.

    Attributes:
        row: figures, ratios, intervals, verdicts and bands of the point, as a row of a run's summary.
        plain: figures of the plain run.
        requests: of each of the last simulations.
    """

    row: Row
    plain: Row
    requests: int

    def to_json(self) -> str:
        """Returns it as text."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Verdicts:
        """Returns what `to_json` wrote, to the last bit."""
        read = json.loads(text)
        return cls(read["row"], read["plain"], read["requests"])


def weight(asked: Asked) -> float:
    """Returns the rough size: a small batch takes more steps a request."""
    workload = asked.point.config.workload
    return counted_requests(workload) * (1.0 + 5.0 / (workload.max_concurrency or 64))


def judge(asked: Asked) -> Verdicts:
    """Simulates a load and K beside the plain run, for as many requests as it takes.

    Raises:
        SimulationError, ValueError: when a point cannot be simulated.
    """
    last: list[Verdicts] = []

    def look(n: int | None) -> Looked:
        found, looked = _at(asked, n)
        last[:] = [found]
        return looked

    if asked.point.config.workload.goes_on:
        go_on(look, Together((asked.plain, asked.point), {asked.point.id: asked.plain}).lengths)
    else:
        look(None)
    return last[0]


def _at(asked: Asked, n: int | None) -> tuple[Verdicts, Looked]:
    """What so many requests show, and how many times as many it takes; None: as many as the file says."""
    point, plain, gain = asked.point, asked.plain, asked.least_gain
    served: dict[tuple[str, int], Served] = {}
    figures: dict[tuple[str, int], Mapping[str, object]] = {}
    for one in (plain, point, *point.ends):
        for seed in asked.seeds:
            served[one.id, seed], figures[one.id, seed] = _simulated(one.config, seed, n)
    read = Requests(Path(), served)
    traffic = {one.id: read.traffic(one, asked.seeds) for one in (plain, point)}
    rows = [_row(asked, one, read, served, figures) for one in (point, *point.ends)]
    row = rows[0] | traffic[point.id] | bands(rows[0], rows[1:])
    most = point.config.workload.goes_on
    row |= {AT_MOST: point.config.run.at_most} if most else {}
    its = means([figures[plain.id, seed] for seed in asked.seeds]) | traffic[plain.id]
    requests_ = n or counted_requests(point.config.workload)
    found = Verdicts(_kept(row), _kept(its), requests_)
    return found, unsettled(read, point, plain, served, gain) if most else Looked(0.0)


def _row(
    asked: Asked,
    one: Point,
    read: Requests,
    served: Mapping[tuple[str, int], Served],
    figures: Mapping[tuple[str, int], Mapping[str, object]],
) -> Row:
    """Figures and ratios of a point, or of an end of its band."""
    plain, seeds = asked.plain, asked.seeds
    row = means([figures[one.id, seed] for seed in seeds])
    pairs = [(figures[one.id, seed], figures[plain.id, seed]) for seed in seeds]
    row |= speedups(pairs, asked.least_gain)
    row |= read.gains(one, plain, seeds, {}, asked.least_gain)
    slo = build(plain.config).slo
    if slo is not None:
        mine, theirs = ([served[p.id, seed] for seed in seeds] for p in (one, plain))
        found = goodput(mine, theirs, slo, is_open(plain.config.workload))
        if found is not None:
            row |= {GOODPUT: found.value, **columns(GOODPUT, found, asked.least_gain)}
    return row


def _simulated(config: Experiment, seed: int, n: int | None) -> tuple[Served, Mapping[str, object]]:
    if n is not None:
        config = with_requests(config, n)
    built = build(config)
    result = simulate(built.scenario, requests(config, seed), seed)
    bench = benchmark(result, built.slo)
    return Served.of(result.requests), {
        **bench.numbers(),
        "acceptance_length": bench.acceptance_length,
    }


def with_requests(config: Experiment, n: int) -> Experiment:
    """Returns a point with so many requests."""
    workload = config.workload.model_copy(update={"num_prompts": n})
    return config.model_copy(update={"workload": workload})


def _kept(row: Row) -> Row:
    """What is text or a number, as JSON takes it back."""
    return {key: value for key, value in row.items() if isinstance(value, str | int | float) or value is None}
