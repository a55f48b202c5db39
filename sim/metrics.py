"""What a benchmark prints, computed from a run's columns after the run.

Names and definitions are `vllm bench serve`'s, on the client's clock. TTFT runs from the send to the
first chunk; TPOT is (end to end - TTFT) / (output tokens - 1), a value a request; ITL is the pause
before each streamed chunk, pooled over requests, and a chunk carries 1 + accepted tokens. So with
speculation ITL rises while TPOT falls. `itl_per_token` is ours: the same pauses divided by the tokens
of the chunk, one sample a token.

Warm-up requests are simulated and not counted. The place of a chunk within its step (the client
handles them one after another) is part of TTFT and E2EL and cancels between neighbouring chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

import numpy as np
import numpy.typing as npt

from specfleet.sim.config import Slo
from specfleet.sim.recorder import FINISHED, Columns
from specfleet.sim.samples import F64, PerToken, Sample, Samples, dot
from specfleet.sim.scenario import RunResult

Value = float | int | str | list[float] | None
PERCENTS = [50.0, 90.0, 95.0, 99.0]


@dataclass(frozen=True)
class Counted:
    """The counted, finished requests of a run, a value each (seconds, client's clock).

    Attributes:
        sent_s, ttft_s, e2el_s, tpot_s: TPOT is 0 for a request of one token, as vLLM's goodput has it.
        prompt_tokens, output_tokens: lengths.
    """

    sent_s: F64
    ttft_s: F64
    e2el_s: F64
    tpot_s: F64
    prompt_tokens: npt.NDArray[np.integer]
    output_tokens: npt.NDArray[np.integer]

    @classmethod
    def of(cls, requests: Columns) -> Counted:
        """Selects them from a run's request columns."""
        chosen = (requests["counted"] == 1) & (requests["status"] == FINISHED)
        names = ("sent_s", "first_chunk_s", "last_chunk_s", "prompt_tokens", "output_tokens")
        columns = [requests[name] if chosen.all() else requests[name][chosen] for name in names]
        sent, first, last = (np.asarray(column, dtype=np.float64) for column in columns[:3])
        prompt, output = columns[3:]
        tpot = last - first
        tpot /= np.maximum(output - 1, 1)
        tpot[output <= 1] = 0.0
        return cls(sent, first - sent, last - sent, tpot, prompt, output)

    @property
    def duration_s(self) -> float:
        """First send to last completion; 0 if nothing finished."""
        return float((self.sent_s + self.e2el_s).max() - self.sent_s.min()) if len(self.sent_s) else 0.0

    def attained(self, slo: Slo) -> npt.NDArray[np.bool_]:
        """Returns which requests met all limits of `slo`."""
        pairs = ((self.ttft_s, slo.ttft_s), (self.tpot_s, slo.tpot_s), (self.e2el_s, slo.e2el_s))
        met = np.ones(len(self.sent_s), dtype=bool)
        for values, limit in pairs:
            met &= values <= (inf if limit is None else limit)
        return met


def step_gaps(iterations: Columns) -> F64:
    """Returns the seconds from the end of an iteration to the end of the next on its replica (first: inf)."""
    end = np.asarray(iterations["end_s"], dtype=np.float64)
    replica = iterations["replica"]
    gaps = np.full(len(end), inf)
    if len(end) and (replica == replica[0]).all():
        np.subtract(end[1:], end[:-1], out=gaps[1:])
        return gaps
    for index in np.unique(replica):
        rows = np.flatnonzero(replica == index)
        gaps[rows[1:]] = np.diff(end[rows])
    return gaps


def inter_token_latencies(result: RunResult) -> tuple[Samples, Sample]:
    """Returns ITL by chunk and by token, seconds.

    A chunk that follows one of the iteration before waited for exactly that iteration, so ITL is a
    weighted sample of iterations; the few longer pauses (preemption, a full budget) are added.
    """
    counts = result.iterations["gaps_by_tokens"]
    chunks, gaps = counts.sum(axis=1, dtype=np.int32), step_gaps(result.iterations)
    gaps[chunks == 0] = 0.0  # nobody waited for these
    odd = result.odd_gaps["counted"] == 1
    odd_s = np.asarray(result.odd_gaps["gap_s"][odd], dtype=np.float64)
    odd_tokens = result.odd_gaps["tokens"][odd].astype(np.int64)
    used = chunks > 0
    by_chunk = Samples(
        np.concatenate([gaps[used], odd_s]),
        np.concatenate([chunks[used], np.ones(len(odd_s), dtype=np.int32)]),
    )
    return by_chunk, PerToken(gaps, counts, odd_s, odd_tokens)


def _peaks(result: RunResult, counted: Counted) -> tuple[float, int]:
    """Returns vLLM's peaks over one-second bins: streamed chunks (not tokens), and requests present."""
    if not len(counted.sent_s):
        return 0.0, 0
    start = float(counted.sent_s.min())
    bins = int(np.ceil(counted.duration_s)) + 1
    receive, odd = result.scenario.client.receive_s, result.odd_gaps["counted"] == 1
    gaps = result.iterations["gaps_by_tokens"].sum(axis=1, dtype=np.int32)
    end_s = np.asarray(result.iterations["end_s"], dtype=np.float64)
    chunks = _by_second(end_s[gaps > 0] + receive, start, bins, gaps[gaps > 0])
    chunks += _by_second(np.asarray(result.odd_gaps["end_s"], dtype=np.float64)[odd] + receive, start, bins)
    chunks += _by_second(counted.sent_s + counted.ttft_s, start, bins)
    last = _by_second(counted.sent_s + counted.e2el_s, start, bins)
    present = np.cumsum(_by_second(counted.sent_s, start, bins) - last) + last
    return float(chunks.max()), int(present.max())


def _by_second(
    times_s: F64, start_s: float, bins: int, weights: npt.NDArray[np.integer] | None = None
) -> F64:
    """Returns how much falls into each of `bins` seconds from `start_s`; what lies outside is left out."""
    places = (times_s - start_s).astype(np.intp)
    inside = (places >= 0) & (places < bins)
    if not inside.all():
        places, weights = places[inside], None if weights is None else weights[inside]
    return np.bincount(places, weights=weights, minlength=bins).astype(np.float64)


class Described(Protocol):
    """What has a mean, a deviation and percentiles: a `Sample`, or a `Tally`."""

    def mean(self) -> float: ...

    def std(self) -> float: ...

    def percentiles(self, percents: Sequence[float]) -> list[float]: ...


def statistics(name: str, samples: Described) -> dict[str, float]:
    """Returns mean, median, standard deviation and percentiles in milliseconds under vLLM's key names."""
    median, p90, p95, p99 = samples.percentiles(PERCENTS)
    values = {
        "mean": samples.mean(),
        "median": median,
        "std": samples.std(),
        "p90": p90,
        "p95": p95,
        "p99": p99,
    }
    return {f"{statistic}_{name}_ms": 1e3 * value for statistic, value in values.items()}


def acceptance(result: RunResult) -> dict[str, Value]:
    """Returns vLLM's `spec_decode_*` keys over the counted requests; empty without speculation."""
    if not result.scenario.engine.num_speculative_tokens:
        return {}
    chosen = result.requests["counted"] == 1
    return spec_decode(result.rounds_by_accepted, int(result.requests["draft_tokens"][chosen].sum()))


def spec_decode(rounds_by_accepted: Sequence[int], drafted: int) -> dict[str, Value]:
    """Returns vLLM's `spec_decode_*` keys.

    Tokens past the end of a request count as accepted although they are not emitted, as in vLLM's
    counters; rounds without a proposal are not drafts.

    Args:
        rounds_by_accepted: verifications by the drafts accepted in them, from 0.
        drafted: draft tokens.
    """
    counts = np.array(rounds_by_accepted)
    rounds = int(counts.sum())
    accepted = int(counts @ np.arange(len(counts)))
    reached = np.cumsum(counts[::-1])[::-1][1:]
    return {
        "spec_decode_acceptance_rate": 100.0 * accepted / drafted if drafted else 0.0,
        "spec_decode_acceptance_length": 1.0 + accepted / rounds if rounds else 0.0,
        "spec_decode_num_drafts": rounds,
        "spec_decode_draft_tokens": drafted,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_per_position_acceptance_rates": [float(n) / rounds if rounds else 0.0 for n in reached],
    }


def benchmark(result: RunResult, slo: Slo | None = None) -> dict[str, Value]:
    """Returns the figures of `vllm bench serve --save-result`, under its keys, and `itl_per_token`.

    Args:
        result: a finished run.
        slo: limits for `request_goodput`; None leaves it None, as vLLM does.
    """
    values: dict[str, Value] = _requests(result, slo)
    by_chunk, by_token = inter_token_latencies(result)
    e2el = {name: values.pop(name) for name in list(values) if name.endswith("_e2el_ms")}
    return values | statistics("itl", by_chunk) | e2el | statistics("itl_per_token", by_token)


def _requests(result: RunResult, slo: Slo | None) -> dict[str, Value]:
    """Returns the figures of `benchmark` that requests as a whole have."""
    counted = Counted.of(result.requests)
    finished = len(counted.sent_s)
    values = throughput(
        counted.duration_s,
        (finished, int((result.requests["counted"] == 1).sum()) - finished),
        (int(counted.prompt_tokens.sum()), int(counted.output_tokens.sum())),
        None if slo is None else int(counted.attained(slo).sum()),
        _peaks(result, counted),
    )
    values |= acceptance(result)
    values |= statistics("ttft", Samples.of(counted.ttft_s))
    values |= statistics("tpot", Samples.of(counted.tpot_s[counted.output_tokens > 1]))
    values |= statistics("e2el", Samples.of(counted.e2el_s))
    return values


def throughput(
    duration_s: float,
    requests: tuple[int, int],
    tokens: tuple[int, int],
    attained: int | None,
    peaks: tuple[float, int],
) -> dict[str, Value]:
    """Returns the first keys of `benchmark`.

    Args:
        duration_s: first send to last completion.
        requests: completed, failed.
        tokens: prompt and output tokens of those completed.
        attained: requests that met the limits; None without limits.
        peaks: the most chunks streamed, and the most requests present, in one second.
    """
    rate = 1.0 / duration_s if duration_s else 0.0
    return {
        "duration": duration_s,
        "completed": requests[0],
        "failed": requests[1],
        "total_input_tokens": tokens[0],
        "total_output_tokens": tokens[1],
        "request_throughput": requests[0] * rate,
        "request_goodput": None if attained is None else float(attained * rate),
        "output_throughput": tokens[1] * rate,
        "total_token_throughput": sum(tokens) * rate,
        "max_output_tokens_per_s": float(peaks[0]),
        "max_concurrent_requests": peaks[1],
    }


def engine_load(result: RunResult) -> dict[str, float]:
    """Returns how busy the engines were, over the whole run, warm-ups included.

    `mean_batch` (sequences decoding, by iteration), `mean_running` and `mean_waiting` (by time),
    `peak_kv_usage` (share of the pool), `gpu_busy` (share of time), `preemptions`, `rejected`,
    `drafter_off_share` (iterations in which the longest sequence was past the drafter's positions).
    """
    requests, rows = result.requests, result.iterations
    chosen = requests["counted"] == 1
    if not len(rows["end_s"]):
        return {}
    decoding = rows["decode_sequences"] > 0
    seconds = np.asarray(rows["end_s"], dtype=np.float64) - np.asarray(rows["start_s"], dtype=np.float64)
    span = float(rows["end_s"].max() - rows["start_s"].min()) * result.scenario.deployment.replicas
    return {
        "mean_batch": float(rows["decode_sequences"][decoding].mean()) if decoding.any() else 0.0,
        "mean_running": dot(seconds, rows["running"]) / span,
        "mean_waiting": dot(seconds, rows["waiting"]) / span,
        "peak_kv_usage": float(rows["kv_blocks_used"].max() / result.scenario.engine.usable_blocks),
        "gpu_busy": float(seconds.sum() / span),
        "preemptions": float(requests["preemptions"][chosen].sum()),
        "rejected": float((requests["status"][chosen] != FINISHED).sum()),
        "prefix_hit_share": float(
            requests["cached_tokens"][chosen].sum() / max(int(requests["prompt_tokens"][chosen].sum()), 1)
        ),
        "drafter_off_share": result.steps_without_drafter / len(seconds),
    }


def by_class(result: RunResult, class_names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Returns the client-side latencies (ms), tokens and acceptance length of each traffic class."""
    requests = result.requests
    found = {}
    for index, name in enumerate(class_names):
        mine = {key: column[requests["class_id"] == index] for key, column in requests.items()}
        counted = Counted.of(mine)
        tpot = Samples.of(counted.tpot_s[counted.output_tokens > 1])
        ttft = Samples.of(counted.ttft_s)
        rounds = float(mine["verifications"].sum())
        found[name] = {
            "completed": float(len(counted.sent_s)),
            "output_tokens": float(counted.output_tokens.sum()),
            "mean_ttft_ms": 1e3 * ttft.mean(),
            "p99_ttft_ms": 1e3 * ttft.percentiles([99.0])[0],
            "mean_tpot_ms": 1e3 * tpot.mean(),
            "p99_tpot_ms": 1e3 * tpot.percentiles([99.0])[0],
            "acceptance_length": 1.0 + float(mine["accepted_tokens"].sum()) / rounds if rounds else 1.0,
        }
    return found


def by_replica(result: RunResult, slo: Slo | None = None) -> list[Mapping[str, float]]:
    """Returns request and token throughput, mean latencies (engine's clock, ms) and load of each replica."""
    rows: list[Mapping[str, float]] = []
    requests = result.requests
    span = Counted.of(requests).duration_s
    for index in range(result.scenario.deployment.replicas):
        mine = (requests["counted"] == 1) & (requests["status"] == FINISHED) & (requests["replica"] == index)
        steps = result.iterations["replica"] == index
        busy = (result.iterations["end_s"][steps] - result.iterations["start_s"][steps]).sum()
        wait = requests["admitted_s"][mine] - requests["arrived_s"][mine]
        first = requests["first_token_s"][mine] - requests["arrived_s"][mine]
        rows.append(
            {
                "replica": index,
                "requests": int(mine.sum()),
                "output_tokens": int(requests["output_tokens"][mine].sum()),
                "output_throughput": float(requests["output_tokens"][mine].sum() / span) if span else 0.0,
                "mean_queue_ms": float(1e3 * wait.mean()) if mine.any() else 0.0,
                "mean_engine_ttft_ms": float(1e3 * first.mean()) if mine.any() else 0.0,
                "gpu_busy_s": float(busy),
                "iterations": int(steps.sum()),
            }
        )
    return rows
