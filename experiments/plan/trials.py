"""Simulating for a plan: figures of one trial, kept on disk, spread over processes."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from specfleet import __version__
from specfleet.experiments.plan.fleet.hours import hour_figures
from specfleet.experiments.plan.seen import ATTAINMENT, RATIO, Allowed, TrialFigures
from specfleet.experiments.plan.traffic import Trial
from specfleet.experiments.point.acceptance_specs import scaled
from specfleet.experiments.point.build import placement
from specfleet.experiments.point.built import Built, build
from specfleet.experiments.run.analysis import tpot_split
from specfleet.experiments.run.inputs import input_files
from specfleet.experiments.schema.blocks.plan import Slo
from specfleet.sim.config import ClientConfig
from specfleet.sim.config import Slo as Limits
from specfleet.sim.metrics.columns import benchmark, engine_load
from specfleet.sim.metrics.steady import Steady, steady
from specfleet.sim.metrics.sums import Counted
from specfleet.sim.simulation import RunResult, simulate

F64 = npt.NDArray[np.float64]

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
    if trial.step_factor != 1.0:
        scenario = dataclasses.replace(scenario, client=_faster(scenario.client, trial.step_factor))
    table = trial.table()
    result = simulate(scenario, table, trial.seed)
    counted = Counted.of(result.requests)
    figures, load = benchmark(result, built.slo).numbers(), engine_load(result)
    figures |= ({} if load is None else load.as_dict()) | (
        {} if result.parts else _binding(result, built, trial)
    )
    figures |= {
        "in_flight": _in_flight(counted),
        "slo_attainment": _attainment(counted, built.slo, figures["failed"]),
        "kv_cache_tokens": float(built.budget.tokens),
        "mean_input_tokens": float(counted.prompt_tokens.mean()) if len(counted.sent_s) else 0.0,
        "mean_output_tokens": float(counted.output_tokens.mean()) if len(counted.sent_s) else 0.0,
        "offered_rate": (len(table) - 1) / max(float(table.arrival_s[-1] - table.arrival_s[0]), 1e-9),
    }
    slo = trial.config.slo
    assert slo is not None, "the rules ask for an SLO"
    if figures["failed"]:
        figures[f"{RATIO}refused requests"] = 1.0 + figures["failed"]
    if not len(counted.sent_s):
        return TrialFigures({**figures, f"{RATIO}refused requests": math.inf})
    seen = steady(result, trial.config.workload.arrivals is not None)
    open_loop = trial.config.workload.max_concurrency is None
    state = "stationary" if seen.startup.state == "changing" else seen.startup.state
    if not open_loop and state == "saturated":
        state = "still filling"
    if state == "saturated":
        over = seen.startup.offered_per_s / max(seen.startup.served_per_s, 1e-9)
        figures[f"{RATIO}what is served"] = max(over, JUST_MORE)
    if open_loop:
        figures["request_goodput"] = _goodput(seen, built.slo, figures, state == "saturated")
    series, weights = _series(seen, slo, trial.step_factor)
    figures |= _steady_figures(series)
    if trial.hour_s:
        sent_s = np.asarray(result.requests["sent_s"], dtype=np.float64)[seen.request_id]
        figures |= hour_figures(result, trial.hour_s, sent_s, series, limits_of(slo))
        series, weights = {}, {}
    figures["seconds"] = time.perf_counter() - started
    return TrialFigures(figures, series, limits_of(slo), state, seen.startup.why, seen.startup.first, weights)


JUST_MORE = 1.01
"""Offered over served of a run that is saturated, at least."""


def _faster(client: ClientConfig, factor: float) -> ClientConfig:
    """The client of a world in which time runs `factor` times as fast.

    Steps that take 1.1 times as long are the same as 1.1 times as many requests a second to a client 1.1
    times as fast, each of whose milliseconds counts for 1.1.
    """
    values = {each.name: getattr(client, each.name) / factor for each in dataclasses.fields(client)}
    return ClientConfig(**values)


def limits_of(slo: Slo) -> dict[str, Allowed]:
    """Returns the limits of an SLO, by name.

    By request it is one: of the worst of a request's latencies over their limits, which is at most 1 for
    exactly the share of good requests.
    """
    found = {}
    for key, limit in slo.percentile_limits_ms.items():
        percentile, latency, _ = key.split("_")
        found[key] = Allowed(float(percentile[1:]) / 100.0, latency, limit)
    return found or {ATTAINMENT: Allowed(slo.attainment, ATTAINMENT, 1.0)}


def _series(seen: Steady, slo: Slo, factor: float) -> tuple[dict[str, F64], dict[str, F64]]:
    """Returns the latencies of the steady part, milliseconds, and the weights of those that have some."""
    found = {"ttft": seen.ttft_s, "tpot": np.where(seen.several, seen.tpot_s, 0.0), "e2el": seen.e2el_s}
    found = {name: 1e3 * factor * values for name, values in found.items()}
    if not slo.percentile_limits_ms:
        over = [found[latency] / limit for latency, limit in slo.request_limits_ms.items()]
        found[ATTAINMENT] = np.max(over, axis=0)
    if not any("itl" in key for key in slo.percentile_limits_ms):
        return found, {}
    pauses = seen.pauses["itl"]
    assert pauses.weights is not None
    return found | {"itl": 1e3 * factor * pauses.values}, {"itl": pauses.weights}


def _steady_figures(series: Mapping[str, F64]) -> dict[str, float]:
    """Returns the latencies of the steady part under the benchmark's names."""
    found = {}
    for latency in ("ttft", "tpot", "e2el"):
        values = series[latency][series[latency] > 0.0]
        if len(values):
            found[f"mean_{latency}_ms"] = float(values.mean())
            shares = np.quantile(values, (0.5, 0.9, 0.95, 0.99)).tolist()
            names = ("median", "p90", "p95", "p99")
            found |= {f"{name}_{latency}_ms": at for name, at in zip(names, shares, strict=True)}
    return found


def _goodput(seen: Steady, slo: Limits | None, figures: Mapping[str, float], saturated: bool) -> float:
    """Returns good requests a second over the window of arrivals: the share that is good of those served.

    What comes is what is served, unless more comes than can be.
    """
    if slo is None:
        return 0.0
    pairs = ((seen.ttft_s, slo.ttft_s), (seen.tpot_s, slo.tpot_s), (seen.e2el_s, slo.e2el_s))
    good = np.ones(len(seen.ttft_s), dtype=np.bool_)
    for values, limit in pairs:
        good &= values <= (math.inf if limit is None else limit)
    served = seen.startup.served_per_s if saturated else figures["offered_rate"]
    refused = figures["failed"] / max(figures["failed"] + figures["completed"], 1.0)
    return float(good.mean()) * (1.0 - refused) * served


def _attainment(counted: Counted, slo: Limits | None, failed: float) -> float:
    """Returns the share of all requests that met every limit; a refused one met none."""
    asked = len(counted.sent_s) + failed
    return float(counted.attained(slo).sum() / asked) if slo is not None and asked else 0.0


def _in_flight(counted: Counted) -> float:
    """Returns the mean number in flight over the last quarter of the sends."""
    if len(counted.sent_s) < 8:
        return float(len(counted.sent_s))
    sent = np.sort(counted.sent_s)
    ends = np.sort(counted.sent_s + counted.e2el_s)
    at = sent[0] + (sent[-1] - sent[0]) * np.linspace(0.75, 1.0, 101)
    flying = np.searchsorted(sent, at, side="right") - np.searchsorted(ends, at, side="right")
    return float(flying.mean())


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


def trial_key(trial: Trial) -> str:
    """Returns a name that two trials share only if they are the same in all that matters, files too."""
    apart = {"name", "seed", "replications", "plan", "report", "claim", "run"}
    config = trial.config.model_dump_json(exclude=apart)
    factors = (trial.output_factor, trial.acceptance_factor, trial.step_factor)
    files = "".join(f" {digest_}" for digest_ in input_files(trial.config).values())
    hours = (trial.hour_s,) if trial.hour_s else ()
    return digest(__version__, config, trial.seed, trial.share, trial.rows, factors, files, *hours)


def digest(*parts: object) -> str:
    """Returns a short name for some values."""
    return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()[:24]
