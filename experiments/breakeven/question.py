"""`specfleet breakeven`: the acceptance from which speculation pays, at each load and draft length."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from specfleet.experiments.breakeven.search import QUESTIONS, Curve, Figures, Root
from specfleet.experiments.load.config import Loaded, load
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import Built, build, requests, requests_asked
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.run.run import default_jobs
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.simulation import RunResult, simulate
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.workloads.requests import RequestTable

CONCURRENCY, RATE = "workload.max_concurrency", "workload.request_rate"
DRAFTS = "serve.speculative_config.num_speculative_tokens"
NO_REPORT = ("report={}",)
"""A report's baseline must lie on the axes; the search brings its own."""

Item = TypeVar("Item")
Result = TypeVar("Result")


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
    """

    config: Experiment
    seed: int
    load: float
    k: int
    tolerance: float
    plain: Figures = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Names it in progress and failures."""
        return f"load={self.load:g},K={self.k},seed={self.seed}"


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
    roots = {name: root for name in QUESTIONS if (root := curve.root(name)) is not None}
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


@dataclass
class Breakeven:
    """The whole search: loads by draft lengths by seeds.

    Args:
        file: the experiment's YAML.
        overrides: `key=value` from the command line.
        out: the results folder; None is `results/NAME-breakeven`.
        tolerance: width to which a crossing is bracketed.

    Raises:
        InputFaults: with all that is wrong with the file, or why no search can be made of it.
    """

    file: Path
    overrides: Sequence[str] = ()
    out: Path | None = None
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 < self.tolerance <= 0.2:
            raise _fault("--tolerance", f"is {self.tolerance:g}; it must lie in (0, 0.2]")
        self.overrides = tuple(self.overrides)
        given = load(self.file, (*self.overrides, *NO_REPORT)).experiment
        self.axis = load_axis(given)
        self.loads = tuple(map(float, _values(given, self.axis)))
        self.drafts = tuple(sorted({int(k) for k in _values(given, DRAFTS)} - {0}))
        if not self.drafts:
            raise _fault(DRAFTS, "names no K above 0; give at least one")
        _check_others(given, (self.axis, DRAFTS))
        numbers = ", ".join(str(k) for k in (0, *self.drafts))
        loads = ", ".join(map(_yaml, self.loads if self.axis == RATE else map(int, self.loads)))
        grid = (f"sweep.axes.{DRAFTS}=[{numbers}]", f"sweep.axes.{self.axis}=[{loads}]")
        self.loaded: Loaded = load(self.file, (*self.overrides, *NO_REPORT, *grid))
        experiment = self.loaded.experiment
        self.folder = self.out or Path("results") / f"{experiment.name}-breakeven"
        self.seeds = tuple(experiment.seed + i for i in range(experiment.replications))
        self.configs = {
            (float(str(point.axes[self.axis])), int(str(point.axes[DRAFTS]))): point.config
            for point in expand(experiment)
        }
        self.found: dict[tuple[float, int, int], Found] = {}
        self.failures: list[tuple[str, str]] = []

    @property
    def simulations(self) -> int:
        """Simulations made so far."""
        return sum(1 + len(found.alphas) for found in self.found.values())

    def cells(self, drafts: Sequence[int]) -> list[Cell]:
        """Returns the searches for these K, longest first; those without a plain run are left out."""
        cells = []
        for at, k, seed in ((at, k, seed) for at in self.loads for k in drafts for seed in self.seeds):
            if k and (at, 0, seed) not in self.found:
                continue
            plain = self.found[at, 0, seed].own if k else {}
            cells.append(Cell(self.configs[at, k], seed, at, k, self.tolerance, plain))
        return sorted(cells, key=_weight, reverse=True)

    def execute(self, jobs: int, reporter: Reporter) -> None:
        """Runs the plain points, then the searches; failures are noted and the others go on."""
        with reporter:
            for drafts in ((0,), self.drafts):
                for cell, found in in_processes(search, self.cells(drafts), jobs):
                    if isinstance(found, Found):
                        self.found[cell.load, cell.k, cell.seed] = found
                    else:
                        self.failures.append((cell.id, f"{type(found).__name__}: {found}"))
                        reporter.say(f"failed: {cell.id}: {self.failures[-1][1]}")
                    reporter.finished(cell.id)

    def prepare(self) -> None:
        """Makes the folder ready; InputFaults if it belongs to something else."""
        folder = self.folder
        if folder.exists() and any(folder.iterdir()) and not (folder / "breakeven.json").exists():
            raise _fault("--out", f"{folder} is not empty and holds no breakeven.json; use another --out")
        folder.mkdir(parents=True, exist_ok=True)


def load_axis(experiment: Experiment) -> str:
    """Returns the key that varies the load: the swept one, else the one given."""
    axes, workload = experiment.sweep.axes, experiment.workload
    for key in sorted((key for key in (CONCURRENCY, RATE) if key in axes), key=lambda k: -len(axes[k])):
        return key
    if workload.max_concurrency is not None:
        return CONCURRENCY
    if workload.request_rate is not None:
        return RATE
    raise _fault(CONCURRENCY, "and request_rate are not given; break-even needs a load: give one of them")


def _values(experiment: Experiment, key: str) -> tuple[float, ...]:
    """The values of an axis, or the file's one value."""
    if key in experiment.sweep.axes:
        values: Sequence[object] = experiment.sweep.axes[key]
    elif key == DRAFTS:
        speculative = experiment.serve.speculative_config
        values = [speculative.num_speculative_tokens if speculative else 0]
    else:
        values = [getattr(experiment.workload, key.rpartition(".")[2])]
    return tuple(float(str(value or 0)) for value in dict.fromkeys(values))


def _check_others(experiment: Experiment, used: Sequence[str]) -> None:
    """Every other axis must have one value."""
    wide = {key: v for key, v in experiment.sweep.axes.items() if key not in used and len(v) > 1}
    if wide:
        message = "has {} values, and break-even looks at one setup; choose one, as in sweep.axes.{}=[{}]"
        raise InputFaults(
            Fault(COMMAND_LINE, 0, f"sweep.axes.{key}", message.format(len(v), key, v[0]))
            for key, v in wide.items()
        )


def _yaml(value: float) -> str:
    return ".inf" if math.isinf(value) else repr(value)


def _weight(cell: Cell) -> float:
    """Rough size: a request costs its own handling and its share of the steps, fewer in larger batches."""
    workload = cell.config.workload
    requests = requests_asked(workload, workload.num_prompts) or 1
    return requests * (1.0 + 5.0 / (workload.max_concurrency or 64))


def _fault(key: str, message: str) -> InputFaults:
    return InputFaults([Fault(COMMAND_LINE, 0, key, message)])


def in_processes(
    work: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[tuple[Item, Result | Exception]]:
    """Yields each item with its result, or what went wrong, as it finishes; `jobs` of 1 works here."""
    if jobs <= 1 or len(items) <= 1:
        for item in items:
            try:
                yield item, work(item)
            except Exception as error:
                yield item, error
        return
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(min(jobs, len(items)), context, _leave_interrupts_alone) as pool:
        futures: dict[Future[Result], Item] = {pool.submit(work, item): item for item in items}
        try:
            for future in as_completed(futures):
                raised = future.exception()
                if isinstance(raised, Exception):
                    yield futures[future], raised
                else:
                    yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _leave_interrupts_alone() -> None:
    """Ctrl-C reaches workers too, but the main process stops them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def breakeven_command(
    file: Path,
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    out: Path | None = None,
    tolerance: float = 0.01,
    plots: bool = True,
    quiet: bool = False,
) -> int:
    """Searches, prints the answer, and writes breakeven.json, breakeven.csv and plots/.

    Returns:
        The exit code: 0 done, 1 some search failed, 130 interrupted.

    Raises:
        InputFaults: with all that is wrong with the file or the options.
    """
    from specfleet.experiments.breakeven.report import report, write

    this = Breakeven(file, overrides, out, tolerance)
    this.prepare()
    reporter = Reporter(len(this.seeds) * len(this.loads) * (1 + len(this.drafts)), quiet)
    for notice in this.loaded.notices:
        reporter.say(f"note: {notice}")
    try:
        this.execute(jobs or default_jobs(), reporter)
    except KeyboardInterrupt:
        print("interrupted: nothing is written; start again", file=sys.stderr)
        return 130
    if any(k for _, k, _ in this.found):
        print(report(this))
        write(this)
        if plots:
            from specfleet.experiments.breakeven.figures import draw_breakeven

            draw_breakeven(this)
        print(f"results: {this.folder}")
    if this.failures:
        print(f"{len(this.failures)} searches failed: {this.failures[0][1]}", file=sys.stderr)
        return 1
    return 0
