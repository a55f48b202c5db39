"""Runs the points of an experiment and writes what each found.

A point's folder appears whole or not at all: it is written beside its place and renamed, and
`_SUCCESS` is its last file. So an interrupted run leaves finished points behind, and `--resume`
goes on from them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specfleet.experiments.load.rules.sglang import is_sglang
from specfleet.experiments.load.sweep import Point
from specfleet.experiments.point.build import counted_requests, requests, turn_classes, workload_spec
from specfleet.experiments.point.built import Built, build
from specfleet.experiments.run.analysis import StepTotals, intervals, tpot_splits
from specfleet.experiments.run.columnfiles import write_fleet, write_json, write_requests
from specfleet.experiments.run.costs.energy import energy_of
from specfleet.experiments.run.costs.loads import loads, of_paid, rates
from specfleet.experiments.run.costs.paid import Paid, scaling_logs, scaling_of
from specfleet.experiments.run.files import WHOLE, write_folder
from specfleet.experiments.run.fleets.shares import (
    Shares,
    pieces,
    put_together,
    shares_in,
    simulated,
    summed_up,
)
from specfleet.experiments.run.pools import flat, gateway_of, of_decode, pools_of, steps_of, told_of
from specfleet.experiments.run.processes import Workers, at_hand
from specfleet.experiments.run.sglang_bench import sglang_bench_json
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.sim.metrics.client_queue import client_queue
from specfleet.sim.metrics.columns import benchmark, by_class, by_replica, engine_load
from specfleet.sim.metrics.figures import ClassFigures, Figures
from specfleet.sim.metrics.summary import Summary
from specfleet.sim.metrics.sums import Counted
from specfleet.sim.metrics.tasks import Tasks, due_s
from specfleet.sim.recorder import FINISHED, Columns
from specfleet.sim.scenario import RunResult
from specfleet.sim.simulation import simulate
from specfleet.sim.speculation.spec import unfit_for_tails

SECONDS = (60e-6, 2e-6)
"""CPU time of a request, and of an iteration that it does not share: 467, 163, 104, 73 and 57 us a request
with 1, 4, 16, 64 and 256 users, K = 4, outputs of 250 tokens (2,000 requests, two shared cores)."""
MANY_USERS, SOME_TOKENS = 64, 250
"""Where nothing limits the users, and for a trace that is not read for it."""
WORKER_START_S = 0.5
"""What a further process must have to do, to be worth its start."""

GROWN = 10_000
"""Requests, roughly, of a simulation that goes on until it is settled."""

Started = Callable[[str], None]
Files = Mapping[str, Callable[[Path], object]]
"""What writes each of a task's files."""


@dataclass(frozen=True)
class Task:
    """One simulation: a point and a seed.

    Args:
        point: where in the sweep.
        seed: of requests and luck.
        folder: the run's folder.
        every_turn: whether the laws are checked after every turn of an engine, as `simulate` does.
    """

    point: Point
    seed: int
    folder: Path
    every_turn: bool = False

    @property
    def id(self) -> str:
        """Names the task's folder under `points/`."""
        return f"{self.point.id},seed={self.seed}"

    @property
    def path(self) -> Path:
        """The task's folder."""
        return self.folder / "points" / self.id

    @property
    def done(self) -> bool:
        """Whether its folder is complete."""
        return (self.path / WHOLE).exists()

    def placed(self, root: Path) -> Task:
        """Returns the same in another folder of a run."""
        return replace(self, folder=root)

    @property
    def shares(self) -> int:
        """In how many shares of its replicas it may be simulated apart."""
        return shares_in(self.point.config, self.every_turn)

    @property
    def seconds(self) -> float:
        """Roughly how long it takes, to start the longest first.

        By the requests and, where so many users wait for answers, by the iterations that they take: see
        `SECONDS`.
        """
        workload = self.point.config.workload
        users = workload.max_concurrency or MANY_USERS
        spec = None if workload.trace else workload_spec(workload)
        output = spec.output.mean if spec else SOME_TOKENS
        each, iteration = SECONDS
        requests = GROWN if workload.goes_on else counted_requests(workload) or 1
        return requests * (each + iteration * output / users)


def tasks(
    points: tuple[Point, ...], replications: int, seed: int, folder: Path, every_turn: bool = False
) -> list[Task]:
    """Returns every (point, seed), point by point."""
    return [Task(point, seed + i, folder, every_turn) for point in points for i in range(replications)]


def run_task(task: Task) -> str:
    """Simulates one task and writes its folder; returns its id.

    Raises:
        SimulationError, ValueError, OSError: when the point cannot be run or written; nothing is left behind.
    """
    simulate_into(task.path, task.point.config, task.seed, task.every_turn)
    return task.id


def simulate_into(path: Path, config: Experiment, seed: int, every_turn: bool) -> None:
    """Simulates a point and writes the folder `path`, whole or not at all; raises as `run_task` does."""
    built = build(config)
    forgets = config.report.requests == "none"
    if forgets:
        files = _summed_up(config, built, *summed_up(config, built, seed, every_turn))
    else:
        files = _in_full(config, built, seed, every_turn)
    write_folder(path, files)


def _in_full(config: Experiment, built: Built, seed: int, every_turn: bool) -> Files:
    """Simulates a point and returns its files, every request among them."""
    table = requests(config, seed)
    result = simulate(built.scenario, table, seed, every_turn=every_turn)
    figures, steps = benchmark(result, built.slo), steps_of(result, built)
    measured = result.requests["counted"] == 1
    due = due_s(result, table)[measured & (result.requests["status"] == FINISHED)]
    mixed = len(table.class_names) > 1
    figures_of = by_class(result, table.class_names, built.slo) if mixed else {}
    paid = Paid.of(built, steps, result)
    load = of_paid(engine_load(result), paid.replica_share)
    engine = {
        **loads(figures, load),
        **_steps(result, built, steps, table.class_names),
        **({"class_names": list(table.class_names)} if mixed else {}),
        **intervals(result),
        "slo_attainment": figures.slo_attainment,
        **rates(figures, load, built, paid),
        **energy_of(built, steps, paid, _wasted(result)),
        **scaling_of(result, paid),
        "steps": len(result.iterations["start_s"]),
        **_by_class(figures_of),
        **client_queue(built.scenario, table, Counted.of(result.requests), due),
        **_tasks(config, result, built, paid.gpu_share),
        "refusals": dict(result.refusals),
        "warning": unfit_for_tails([spec for pool in built.pools for spec in pool.acceptance.values()]),
        **_pools(result, built, figures, steps, paid),
        **told_of(result),
        "stepped": {"share": result.stepped_share, "because": result.stepped_because},
    }
    bench = bench_json(config, figures, int(measured.sum()))
    return {
        "bench.json": partial(_write_bench, bench=bench, requests=result.requests, due=due),
        "engine.json": partial(write_json, content=engine),
        "requests.csv": partial(write_requests, columns=result.requests),
        **_fleets(result),
        **_sglang_bench(config, figures),
    }


def _write_bench(
    path: Path, bench: Mapping[str, object], requests: Columns, due: npt.NDArray[np.float64]
) -> None:
    """Writes the figures, and of each counted request its latency and what it waited since it was `due`."""
    own = Counted.of(requests)
    write_json(path, {**bench, "rtfx": 0.0, "latencies": own.e2el_s, "queue_times": own.sent_s - due})


def _steps(
    result: RunResult, built: Built, steps: dict[str, StepTotals], class_names: Sequence[str]
) -> dict[str, object]:
    """Returns where the time of steps went. Of several pools each has its own (`pools`); here all steps."""
    if len(result.parts) > 1:
        totals = StepTotals.of(built.scenario, built.plain_cost)
        for mine in steps.values():
            totals.take(mine)
        return {**totals.split(), **of_decode(result, built, steps, class_names)}
    counts = (int(result.requests[name].sum()) for name in ("accepted_tokens", "verifications"))
    (totals,) = steps.values()
    whole, by_class = tpot_splits(result.parts[0] if result.parts else result, built.plain_cost, class_names)
    splits = {"tpot_split": whole, **({"tpot_split_by_class": by_class} if by_class else {})}
    return {**totals.split(), **totals.overheads(*counts), **splits}


def _pools(
    result: RunResult, built: Built, figures: Figures, steps: dict[str, StepTotals], paid: Paid
) -> dict[str, object]:
    """Returns the figures of each replica, and of each pool where there are several."""
    replicas = [replica.as_dict() for replica in by_replica(result)]
    if not result.parts:
        return {"replicas": replicas}
    names = {member: pool.name for pool in result.scenario.pools for member in pool.members}
    found = pools_of(result, built, figures, steps, paid)
    gateway = gateway_of(result)
    if [*steps] == [""]:
        return {**gateway, "replicas": replicas}
    named = [{"pool": names[number], **replica} for number, replica in enumerate(replicas)]
    return {**gateway, **flat(found), "pools": found, "replicas": named}


def _wasted(result: RunResult) -> int:
    """Returns the output tokens that were thrown away, with replicas that were lost."""
    return int(result.requests["wasted_tokens"].sum()) if "wasted_tokens" in result.requests else 0


def _fleets(result: RunResult) -> Files:
    """Returns a file for each pool whose replicas come and go: how many there were, over time."""
    loses = result.scenario.deployment.failures is not None
    return {
        f"fleet{'-' if name else ''}{name}.csv": partial(write_fleet, log=log, loses=loses)
        for name, log in scaling_logs(result).items()
    }


def _summed_up(config: Experiment, built: Built, summary: Summary, totals: StepTotals) -> Files:
    """Returns the files of a point whose requests were forgotten, without what only they could tell.

    `held_whole` says why the run had to be held in memory after all, or is null.
    """
    totals.tokens = totals.tokens or summary.tokens
    figures, load = summary.benchmark(), summary.engine_load()
    engine = {
        **loads(figures, load),
        **totals.split(),
        **totals.overheads(summary.all.accepted, summary.all.verifications),
        "slo_attainment": figures.slo_attainment,
        **rates(figures, load, built, Paid.of(built, {built.pools[0].name: totals})),
        **energy_of(built, {built.pools[0].name: totals}),
        "steps": summary.steps,
        **_by_class(summary.by_class()),
        "refusals": dict(summary.refusals),
        "warning": unfit_for_tails(built.scenario.acceptance.values()),
        "replicas": [replica.as_dict() for replica in summary.by_replica()],
        "stepped": {"share": summary.stepped_share, "because": summary.stepped_because},
        **({"class_names": list(summary.class_names)} if len(summary.class_names) > 1 else {}),
        "held_whole": summary.whole,
    }
    bench = {**bench_json(config, figures, summary.all.counted), "rtfx": 0.0}
    return {
        "bench.json": partial(write_json, content=bench),
        "engine.json": partial(write_json, content=engine),
        **_sglang_bench(config, figures),
    }


def _sglang_bench(config: Experiment, figures: Figures) -> Files:
    """Returns one more file for SGLang's engine: the figures as its own benchmark has them."""
    if not is_sglang(config.serve):
        return {}
    return {"sglang_bench.json": partial(write_json, content=sglang_bench_json(config, figures))}


def bench_json(config: Experiment, figures: Figures, num_prompts: int) -> dict[str, object]:
    """Returns the result file of `vllm bench serve --save-result`, key for key, without its lists.

    `date` is fixed: the same seed gives the same bytes.
    """
    workload, model = config.workload, config.serve.model
    name = model if isinstance(model, str) else str(model.get("name", "inline"))
    rate = workload.request_rate
    shown = {key: value for key, value in figures.as_dict().items() if not key.startswith(("p90", "p95"))}
    return {
        "date": "19700101-000000",
        "endpoint_type": "specfleet",
        "backend": "specfleet",
        "label": None,
        "model_id": name,
        "tokenizer_id": name,
        "num_prompts": num_prompts,
        "request_rate": "inf" if rate is None or np.isinf(rate) else rate,
        "burstiness": workload.gap_shape,
        "max_concurrency": workload.max_concurrency,
        **{key: value for key, value in shown.items() if "itl_per_token" not in key},
    }


def _tasks(config: Experiment, result: RunResult, built: Built, paid: float) -> dict[str, float]:
    """Returns the figures of sessions, and of each traffic class of them; empty where requests are none.

    What a task costs is not known where single requests, or other sessions, are served by the same GPUs.
    """
    if "turn" not in result.requests:
        return {}
    prices = [pool.per_hour_usd for pool in built.pools]
    known = [price for price in prices if price is not None]
    total = paid * sum(known) if len(known) == len(prices) else None
    turns = turn_classes(config.workload)
    if turns is None:
        return Tasks.of(result.requests).figures(paid * built.gpus, total)
    if not turns:
        return {}
    every = len(turns) == len(config.workload.classes)
    found = Tasks.of(result.requests, list(turns.values())).figures(
        paid * built.gpus if every else None, total
    )
    for name, place in turns.items():
        mine = Tasks.of(result.requests, [place]).figures(None, None)
        found |= {f"class:{name}:{figure}": value for figure, value in mine.items()}
    return found


def _by_class(classes: Mapping[str, ClassFigures]) -> dict[str, float]:
    """Returns the figures of each traffic class as `class:NAME:FIGURE`."""
    return {
        f"class:{name}:{figure}": value
        for name, figures in classes.items()
        for figure, value in figures.as_dict().items()
    }


def run_tasks(
    todo: list[Task], jobs: int | Workers, started: Started, failed: Callable[[Task, BaseException], None]
) -> Generator[Task, None, None]:
    """Runs tasks, the longest first, in `jobs` processes; yields each as it finishes.

    Args:
        todo: what to run.
        jobs: processes; 1 runs here. Or those to run in, which are left as they are.
        started: told what is running.
        failed: told of a task that could not be run; the others go on.
    """
    with at_hand(jobs) as workers:
        ordered = sorted(todo, key=lambda task: -task.seconds)
        each = -(-workers.jobs // max(len(ordered), 1))
        items = [FleetPiece(task, which) for task in ordered for which in pieces(task.shares, each)]
        found: dict[int, Shares | None] = {}
        left = Counter(item.task.id for item in items)
        places: dict[str, list[int]] = defaultdict(list)
        for i, item in enumerate(items):
            places[item.task.id].append(i)

        def running(at: Sequence[int]) -> None:
            started(", ".join(dict.fromkeys(items[i].task.id for i in at)))

        for at, done in workers.as_written(run_piece, items, running):
            task = items[at].task
            if task.id not in left:
                continue  # another piece of it has failed
            left[task.id] -= 1
            if isinstance(done, Exception):
                del left[task.id]
                failed(task, done)
                yield task
                continue
            found[at] = done
            if not left[task.id]:
                mine = [found.pop(i) for i in places.pop(task.id)]
                if error := _finished(task, mine):
                    failed(task, error)
                yield task


@dataclass(frozen=True)
class FleetPiece:
    """What a process does at a time: a task, or some shares of its replicas."""

    task: Task
    which: range

    @property
    def path(self) -> Path:
        """The task's folder, which a piece that is all of it makes."""
        return self.task.path

    @property
    def done(self) -> bool:
        """Whether the task's folder is complete."""
        return self.task.done

    def placed(self, root: Path) -> FleetPiece:
        """Returns the same in another folder of a run."""
        return replace(self, task=self.task.placed(root))


def run_piece(piece: FleetPiece) -> Shares | None:
    """Simulates a piece; returns what its shares did, or None where the task is done, or is to be run whole.

    Raises as `run_task` does.
    """
    if len(piece.which) < piece.task.shares:
        return simulated(piece.task.point.config, piece.task.seed, piece.which)
    run_task(piece.task)
    return None


def _finished(task: Task, parts: Sequence[Shares | None]) -> Exception | None:
    """Writes the folder of a task whose pieces are all there; returns what went wrong."""
    shares = [part for part in parts if part is not None]
    try:
        if len(parts) > 1 and len(shares) == len(parts):
            config = task.point.config
            write_folder(task.path, _summed_up(config, build(config), *put_together(shares)))
        elif len(parts) > 1:
            run_task(task)
    except Exception as error:
        return error
    return None


def worthwhile(todo: Sequence[Task], most: int) -> int:
    """Returns how many processes run these tasks soonest, `most` at most; a start must be worth it."""
    items = sum(task.shares for task in todo)
    return max(1, min(most, items, int(sum(task.seconds for task in todo) / WORKER_START_S)))
