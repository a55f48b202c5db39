"""Simulating for a plan: figures of one trial, kept on disk, spread over processes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from specfleet import __version__
from specfleet.experiments.plan.traffic import Trial
from specfleet.experiments.point.build import Built, build, placement
from specfleet.experiments.run.analysis import tpot_split
from specfleet.experiments.run.files import FolderFault, write_text
from specfleet.experiments.run.inputs import input_files
from specfleet.experiments.run.processes import Workers
from specfleet.experiments.schema.blocks.plan import Slo
from specfleet.sim.config import Slo as Limits
from specfleet.sim.metrics.columns import benchmark, engine_load
from specfleet.sim.metrics.sums import Counted
from specfleet.sim.simulation import RunResult, simulate
from specfleet.sim.speculation.acceptance import AcceptanceSpec, survival_table
from specfleet.sim.speculation.replay import NO_MATCH

Item = TypeVar("Item")
Result = TypeVar("Result")

Sample = tuple[float, list[float]]
"""A share, and values of which the quantile at that share counts."""


class TrialFigures(Mapping[str, float]):
    """What one simulation showed: figures by name, and samples that seeds are pooled over.

    Args:
        figures: `vllm bench serve`'s, load, what binds, and `ratio:NAME` for limits that no sample is of.
        samples: limit -> share and a value over the limit for each request.
    """

    def __init__(self, figures: Mapping[str, float], samples: Mapping[str, Sample]) -> None:
        self._figures = dict(figures)
        self.samples = dict(samples)

    def __getitem__(self, key: str) -> float:
        return self._figures[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def to_json(self) -> str:
        """Returns it as text."""
        return json.dumps({"figures": self._figures, "samples": self.samples}) + "\n"

    @classmethod
    def from_json(cls, text: str) -> TrialFigures:
        """Returns what `to_json` wrote."""
        read = json.loads(text)
        return cls(
            read["figures"], {name: (share, values) for name, (share, values) in read["samples"].items()}
        )


RATIO = "ratio:"
OWN_POSITIONS = 32
"""Positions at which a user's own process is sampled."""
"""Prefix of a measured value over its limit: the SLO is met where none exceeds 1."""

GROWTH_ALLOWED, GROWTH_NOISE = 1.25, 2.0
"""How much the requests in flight may grow from the second to the last quarter of a run, 1.25 + 2 / sqrt(n)
with n in flight, before the load counts as more than can be sustained. The noise term is twice the relative
deviation of a Poisson number."""

NEARLY = 0.95
"""Share of a limit from which it counts as reached."""


def measure(trial: Trial) -> TrialFigures:
    """Simulates a trial.

    Raises:
        ValueError: if the engine cannot be built.
        SimulationError: if the run stands still.
    """
    started = time.perf_counter()
    built = build(trial.config)
    scenario = built.scenario
    if trial.acceptance_factor != 1.0:
        specs = {name: scaled(s, trial.acceptance_factor) for name, s in scenario.acceptance.items()}
        scenario = dataclasses.replace(scenario, acceptance=specs)
    table = trial.table()
    result = simulate(scenario, table, trial.seed)
    counted = Counted.of(result.requests)
    figures, load = benchmark(result, built.slo).numbers(), engine_load(result)
    growth, in_flight = _growth(counted)
    figures |= ({} if load is None else load.as_dict()) | _binding(result, built, trial)
    figures |= {
        "in_flight": in_flight,
        "slo_attainment": _attainment(counted, built.slo, figures["failed"]),
        "kv_cache_tokens": float(built.budget.tokens),
        "mean_input_tokens": float(counted.prompt_tokens.mean()),
        "mean_output_tokens": float(counted.output_tokens.mean()),
        "offered_rate": (len(table) - 1) / max(float(table.arrival_s[-1] - table.arrival_s[0]), 1e-9),
    }
    assert trial.config.slo is not None, "the rules ask for an SLO"
    figures |= _other_ratios(trial.config.slo, figures)
    if trial.config.workload.max_concurrency is None:
        allowed = GROWTH_ALLOWED + GROWTH_NOISE / max(in_flight, 1.0) ** 0.5
        figures[f"{RATIO}growth in flight"] = growth / allowed
    figures["seconds"] = time.perf_counter() - started
    return TrialFigures(figures, _samples(trial.config.slo, counted))


def scaled(spec: AcceptanceSpec, factor: float) -> AcceptanceSpec:
    """Returns a process whose conditional acceptance is `factor` times as high, for every request.

    Recorded requests and a user's own process cannot be changed: the process that accepts as they do on
    average takes their place.
    """
    if spec.own is not None:
        by_position = survival_table(spec, OWN_POSITIONS)[0]
        spec = dataclasses.replace(spec, own=None, by_position=tuple(map(float, by_position)))
    if spec.replay is not None:
        longest = max(accepted for trace in spec.replay for accepted in trace if accepted != NO_MATCH)
        by_position = survival_table(spec, longest or 1)[0]
        spec = dataclasses.replace(spec, replay=None, by_position=tuple(map(float, by_position)))
    nodes = spec.context_multiplier or ((1.0, 1.0),)
    return dataclasses.replace(
        spec, context_multiplier=tuple((tokens, value * factor) for tokens, value in nodes)
    )


def _attainment(counted: Counted, slo: Limits | None, failed: float) -> float:
    """Returns the share of all requests that met every limit; a refused one met none."""
    asked = len(counted.sent_s) + failed
    return float(counted.attained(slo).sum() / asked) if slo is not None and asked else 0.0


def _growth(counted: Counted) -> tuple[float, float]:
    """Returns how the mean number in flight grew from the second to the last quarter of the sends, and it."""
    if len(counted.sent_s) < 8:
        return 1.0, float(len(counted.sent_s))
    sent = np.sort(counted.sent_s)
    ends = np.sort(counted.sent_s + counted.e2el_s)
    first, last = sent[0], sent[-1]
    at = first + (last - first) * np.linspace(0.0, 1.0, 401)
    flying = np.searchsorted(sent, at, side="right") - np.searchsorted(ends, at, side="right")
    early, late = float(flying[100:200].mean()), float(flying[300:].mean())
    return late / max(early, 1.0), late


def _other_ratios(slo: Slo, figures: Mapping[str, float]) -> dict[str, float]:
    """Returns what no sample of requests shows, as `ratio:LIMIT`: percentiles of ITL, refused requests."""
    found = {
        f"{RATIO}{key}": figures[key.replace("p50_", "median_")] / limit
        for key, limit in slo.percentile_limits_ms.items()
        if "itl" in key
    }
    if figures["failed"]:
        found[f"{RATIO}refused requests"] = 1.0 + figures["failed"]
    return found


def _samples(slo: Slo, counted: Counted) -> dict[str, Sample]:
    """Returns each limit's share and the requests' values over it.

    By request: the worst of a request's latencies over their limits, so that the quantile at `attainment` is
    at most 1 exactly where the share asked for is good. TPOT is of requests with more than one token.
    """
    latencies = {
        "ttft": 1e3 * counted.ttft_s,
        "tpot": 1e3 * counted.tpot_s,
        "e2el": 1e3 * counted.e2el_s,
    }
    found: dict[str, Sample] = {}
    for key, limit in slo.percentile_limits_ms.items():
        percentile, latency, _ = key.split("_")
        if latency in latencies:
            values = latencies[latency]
            chosen = values[counted.output_tokens > 1] if latency == "tpot" else values
            found[key] = (float(percentile[1:]) / 100.0, _short(chosen / limit))
    if not slo.percentile_limits_ms and len(counted.sent_s):
        over = [latencies[latency] / limit for latency, limit in slo.request_limits_ms.items()]
        found["attainment"] = (slo.attainment, _short(np.max(over, axis=0)))
    return found


def _short(values: npt.NDArray[np.float64]) -> list[float]:
    """Six significant digits, in order of size."""
    return [float(f"{value:.6g}") for value in np.sort(values).tolist()]


def _binding(result: RunResult, built: Built, trial: Trial) -> dict[str, float]:
    """Returns shares of the busy time in which a limit was reached, and of the slow requests' decode time.

    `at_token_budget`, `at_max_num_seqs` and `at_kv_cache` (with requests waiting), `past_graphs` (steps of
    decoding alone that exceed the largest CUDA graph), `prefill_share` (prompts of others in the TPOT of the
    P99 request).
    """
    rows, engine = result.iterations, result.scenario.engine
    seconds = np.asarray(rows["end_s"], dtype=np.float64) - np.asarray(rows["start_s"], dtype=np.float64)
    busy = max(float(seconds.sum()), 1e-12)
    waiting = rows["waiting"] > 0
    largest = max(placement(trial.config.serve).capture_sizes, default=0)
    decoding = (rows["prefill_sequences"] == 0) & (rows["decode_sequences"] > 0)
    blocks = rows["kv_blocks_used"] >= NEARLY * engine.usable_blocks
    full = {
        "at_token_budget": rows["tokens"] >= NEARLY * engine.max_num_batched_tokens,
        "at_max_num_seqs": (rows["running"] >= engine.max_num_seqs) & waiting,
        "at_kv_cache": blocks & waiting,
    }
    shares = {name: float(seconds[chosen].sum() / busy) for name, chosen in full.items()}
    pure = max(float(seconds[decoding].sum()), 1e-12)
    shares["past_graphs"] = float(seconds[decoding & (rows["tokens"] > largest)].sum() / pure)
    split = tpot_split(result, built.plain_cost).get("p99")
    if split:
        shares["prefill_share"] = split["others_prefill_ms"] / max(split["tpot_ms"], 1e-12)
    return shares


def worst(runs: Sequence[TrialFigures]) -> tuple[float, str]:
    """Returns the largest ratio to a limit and the limit's name.

    A quantile is taken over the requests of all runs together: what the users of several replicas see.
    """
    found: dict[str, float] = {}
    for name, (share, _) in runs[0].samples.items():
        pooled = np.concatenate([run.samples[name][1] for run in runs])
        if name == "attainment":
            found[name] = float(np.quantile(pooled, share, method="higher"))
        else:
            found[name] = float(np.quantile(pooled, share)) if len(pooled) else 0.0
    for key in dict.fromkeys(key for run in runs for key in run if key.startswith(RATIO)):
        found[key.removeprefix(RATIO)] = float(np.mean([run.get(key, 0.0) for run in runs]))
    name = max(found, key=lambda key: found[key])
    return found[name], name


class Laboratory:
    """Runs trials, each once: what a folder holds is read, not simulated again.

    Args:
        folder: of the figures, a file a trial.
        workers: where they run.

    Attributes:
        spent: simulations made.
    """

    def __init__(self, folder: Path, workers: Workers) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.spent = 0
        self._known: dict[str, TrialFigures] = {}
        self._workers = workers

    @property
    def distinct(self) -> int:
        """Different simulations asked for so far."""
        return len(self._known)

    def run(self, trials: Sequence[Trial]) -> list[TrialFigures]:
        """Returns the figures of each trial, in order; the new ones are simulated side by side."""
        keys = [trial_key(trial) for trial in trials]
        missing = {}
        for key, trial in zip(keys, trials, strict=True):
            if key in missing:
                continue
            if key not in self._known and (self.folder / f"{key}.json").is_file():
                self._known[key] = _read(self.folder / f"{key}.json")
            if key not in self._known:
                missing[key] = trial
        for key, figures in zip(missing, self.each(measure, list(missing.values())), strict=True):
            self._keep(key, figures)
        return [self._known[key] for key in keys]

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Returns what `work` makes of each item, in order, side by side where there are processes."""
        return self._workers.in_order(work, items)

    def _keep(self, key: str, figures: TrialFigures) -> None:
        """A file appears whole or not at all."""
        self.spent += 1
        self._known[key] = figures
        write_text(self.folder / f"{key}.json", figures.to_json())


def _read(path: Path) -> TrialFigures:
    """Returns the figures of a trial that was kept; FolderFault if the file is damaged."""
    try:
        return TrialFigures.from_json(path.read_text())
    except (ValueError, KeyError, TypeError) as error:
        raise FolderFault(path, f"is damaged: {error}; remove it, it will be simulated again") from None


def trial_key(trial: Trial) -> str:
    """Returns a name that two trials share only if they are the same in all that matters, files too."""
    config = trial.config.model_dump_json(exclude={"name", "seed", "replications", "plan", "report", "claim"})
    rest = (trial.seed, trial.share, trial.rows, trial.output_factor, trial.acceptance_factor)
    files = "".join(f" {digest}" for digest in input_files(trial.config).values())
    return hashlib.sha256(f"{__version__} {config} {rest}{files}".encode()).hexdigest()[:24]
