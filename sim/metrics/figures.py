"""The figures of a run, typed, and their definitions from sums and samples.

Names and definitions are `vllm bench serve`'s, on the client's clock. TTFT runs from the send to the
first chunk; TPOT is (end to end - TTFT) / (output tokens - 1), a value a request; ITL is the pause
before each streamed chunk, pooled over requests, and a chunk carries 1 + accepted tokens. So with
speculation ITL rises while TPOT falls. `itl_per_token` is ours: the same pauses divided by the tokens
of the chunk, one sample a token.

Warm-up requests are simulated and not counted. The place of a chunk within its step (the client handles
them one after another) is part of TTFT and E2EL and cancels between neighbouring chunks.

Where sums and samples come from makes no difference here: `columns` reads them off the columns of a
finished run, `summary` adds them up while requests are forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from specfleet.sim.metrics.samples import Described
from specfleet.sim.metrics.sums import IterationSums, RequestSums
from specfleet.sim.scenario import Scenario

Value = float | int | list[float] | None
"""A figure as `as_dict` gives it."""

LATENCIES = ("ttft", "tpot", "itl", "e2el", "itl_per_token")
PERCENTS = (50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True)
class LatencyStats:
    """How a latency is distributed, milliseconds; all 0 where it has no sample, as vLLM prints it."""

    mean_ms: float
    median_ms: float
    std_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float

    @classmethod
    def of(cls, sample: Described) -> LatencyStats:
        """Describes a sample of seconds."""
        median, p90, p95, p99 = sample.percentiles(PERCENTS)
        values = (sample.mean(), median, sample.std(), p90, p95, p99)
        return cls(*(1e3 * value for value in values))

    def as_dict(self, latency: str) -> dict[str, float]:
        """Returns the values under vLLM's keys, such as `mean_ttft_ms`."""
        return {f"{name.removesuffix('ms')}{latency}_ms": value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class SpecDecode:
    """vLLM's `spec_decode_*` figures, over the counted requests.

    Tokens past the end of a request count as accepted although they are not emitted, as in vLLM's
    counters; rounds without a proposal are not drafts.

    Attributes:
        draft_acceptance_rate: per cent of the draft tokens that were accepted.
        acceptance_length: 1 + accepted drafts a verification; 0 without one.
        num_drafts: verifications.
        draft_tokens, accepted_tokens: how many.
        per_position_acceptance_rates: share of the verifications that accepted 1 draft, 2, ... or more.
    """

    draft_acceptance_rate: float
    acceptance_length: float
    num_drafts: int
    draft_tokens: int
    accepted_tokens: int
    per_position_acceptance_rates: tuple[float, ...]

    @classmethod
    def of(cls, rounds_by_accepted: Sequence[int], draft_tokens: int) -> SpecDecode:
        """Returns the figures.

        Args:
            rounds_by_accepted: verifications by the drafts accepted in them, from 0.
            draft_tokens: that were proposed.
        """
        counts = np.array(rounds_by_accepted)
        rounds = int(counts.sum())
        accepted = int(counts @ np.arange(len(counts)))
        reached = np.cumsum(counts[::-1])[::-1][1:]
        return cls(
            draft_acceptance_rate=100.0 * accepted / draft_tokens if draft_tokens else 0.0,
            acceptance_length=1.0 + accepted / rounds if rounds else 0.0,
            num_drafts=rounds,
            draft_tokens=draft_tokens,
            accepted_tokens=accepted,
            per_position_acceptance_rates=tuple(float(n) / rounds if rounds else 0.0 for n in reached),
        )

    def as_dict(self) -> dict[str, Value]:
        """Returns the values under vLLM's keys; its `acceptance_rate` is the draft acceptance rate."""
        theirs = {"draft_acceptance_rate": "acceptance_rate"}
        values = {f"spec_decode_{theirs.get(name, name)}": value for name, value in asdict(self).items()}
        return values | {
            "spec_decode_per_position_acceptance_rates": list(self.per_position_acceptance_rates)
        }


@dataclass(frozen=True)
class Figures:
    """What `vllm bench serve` prints of a run, and `itl_per_token`.

    Attributes:
        duration_s: first send to last completion, of the counted requests; 0 if none finished.
        completed, failed: counted requests.
        total_input_tokens, total_output_tokens: of those completed.
        request_throughput, request_goodput: requests a second, and of them those within all limits (None
            without limits).
        slo_attainment: share of the requests within all limits, of those that were completed or could have
            been (`RequestSums.missed`); None without limits or requests. Not among vLLM's.
        output_throughput, total_token_throughput: tokens a second.
        max_output_tokens_per_s: most chunks (not tokens, as in vLLM) streamed in one second.
        max_concurrent_requests: most requests present in one second.
        spec_decode: None without speculation.
        ttft, tpot, itl, e2el, itl_per_token: the latencies.
    """

    duration_s: float
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    request_goodput: float | None
    slo_attainment: float | None
    output_throughput: float
    total_token_throughput: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    spec_decode: SpecDecode | None
    ttft: LatencyStats
    tpot: LatencyStats
    itl: LatencyStats
    e2el: LatencyStats
    itl_per_token: LatencyStats

    @classmethod
    def of(
        cls,
        requests: RequestSums,
        peaks: tuple[int, int],
        spec_decode: SpecDecode | None,
        samples: Mapping[str, Described],
    ) -> Figures:
        """Returns the figures.

        Args:
            requests: sums over all of them.
            peaks: the most chunks streamed, and the most requests present, in one second.
            spec_decode: None without speculation.
            samples: seconds, by the name of the latency (`LATENCIES`).
        """
        duration_s = requests.duration_s
        rate = 1.0 / duration_s if duration_s else 0.0
        attained, tokens = requests.attained, (requests.prompt_tokens, requests.output_tokens)
        return cls(
            duration_s=duration_s,
            completed=requests.completed,
            failed=requests.failed,
            total_input_tokens=tokens[0],
            total_output_tokens=tokens[1],
            request_throughput=requests.completed * rate,
            request_goodput=None if attained is None else float(attained * rate),
            slo_attainment=requests.attainment,
            output_throughput=tokens[1] * rate,
            total_token_throughput=sum(tokens) * rate,
            max_output_tokens_per_s=float(peaks[0]),
            max_concurrent_requests=peaks[1],
            spec_decode=spec_decode,
            **{name: LatencyStats.of(samples[name]) for name in LATENCIES},
        )

    @property
    def acceptance_length(self) -> float:
        """Tokens a verification gives; 1 where there is none."""
        return self.spec_decode.acceptance_length or 1.0 if self.spec_decode else 1.0

    def as_dict(self) -> dict[str, Value]:
        """Returns the figures under the keys of `vllm bench serve --save-result`, in its order."""
        values: dict[str, Value] = {
            "duration": self.duration_s,
            "completed": self.completed,
            "failed": self.failed,
            "total_input_tokens": self.total_input_tokens,
            "total_output_tokens": self.total_output_tokens,
            "request_throughput": self.request_throughput,
            "request_goodput": self.request_goodput,
            "output_throughput": self.output_throughput,
            "total_token_throughput": self.total_token_throughput,
            "max_output_tokens_per_s": self.max_output_tokens_per_s,
            "max_concurrent_requests": self.max_concurrent_requests,
        }
        values |= self.spec_decode.as_dict() if self.spec_decode is not None else {}
        stats = (self.ttft, self.tpot, self.itl, self.e2el, self.itl_per_token)
        for name, latency in zip(LATENCIES, stats, strict=True):
            values |= latency.as_dict(name)
        return values

    def numbers(self) -> dict[str, float]:
        """Returns those of `as_dict` that are one number each: no goodput without limits, no list."""
        return {key: float(value) for key, value in self.as_dict().items() if isinstance(value, int | float)}


@dataclass(frozen=True)
class EngineLoad:
    """How busy the engines were, over the whole run, warm-ups included.

    Attributes:
        mean_batch: sequences decoding, the mean over iterations in which any does.
        mean_running, mean_waiting: sequences of a replica, the mean over time.
        peak_kv_usage: largest share of a replica's KV blocks in use.
        gpu_busy: share of the time.
        preemptions, rejected: of counted requests.
        prefix_hit_share: prompt tokens found in the prefix cache, of those asked for.
        drafter_off_share: iterations in which the longest sequence was past the drafter's positions.
    """

    mean_batch: float
    mean_running: float
    mean_waiting: float
    peak_kv_usage: float
    gpu_busy: float
    preemptions: float
    rejected: float
    prefix_hit_share: float
    drafter_off_share: float

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        requests: RequestSums,
        iterations: IterationSums,
        busy_s: float,
        steps_without_drafter: int,
    ) -> EngineLoad | None:
        """Returns the load; None if nothing ran.

        Args:
            scenario: what was run.
            requests, iterations: sums over all of them.
            busy_s: seconds of the iterations, over all replicas.
            steps_without_drafter: iterations past the drafter's positions.
        """
        if not iterations.steps:
            return None
        decoding = iterations.decoding_steps
        span_s = (iterations.end_s - iterations.start_s) * scenario.deployment.replicas
        return cls(
            mean_batch=iterations.decode_sequences / decoding if decoding else 0.0,
            mean_running=iterations.running_s / span_s,
            mean_waiting=iterations.waiting_s / span_s,
            peak_kv_usage=iterations.most_blocks / scenario.engine.usable_blocks,
            gpu_busy=busy_s / span_s,
            preemptions=float(requests.preemptions),
            rejected=float(requests.failed),
            prefix_hit_share=requests.cached_tokens / max(requests.asked_tokens, 1),
            drafter_off_share=steps_without_drafter / iterations.steps,
        )

    def as_dict(self) -> dict[str, float]:
        """Returns the figures by name."""
        return asdict(self)


@dataclass(frozen=True)
class ClassFigures:
    """Client-side latencies and tokens of the completed requests of one traffic class.

    `acceptance_length` is over all its requests, warm-ups included; 1 where nothing was verified.
    `slo_attainment` is the share within the limits of the class, of those as in `Figures`, and None without
    any; `gave_up` of its clients is None where none can.
    """

    completed: float
    output_tokens: float
    mean_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    p99_tpot_ms: float
    acceptance_length: float
    mean_e2el_ms: float
    p99_e2el_ms: float
    slo_attainment: float | None = None
    gave_up: float | None = None

    @classmethod
    def of(cls, requests: RequestSums, ttft: Described, tpot: Described, e2el: Described) -> ClassFigures:
        """Returns the figures of requests whose sums and seconds these are."""
        return cls(
            completed=float(requests.completed),
            output_tokens=float(requests.output_tokens),
            mean_ttft_ms=1e3 * ttft.mean(),
            p99_ttft_ms=1e3 * ttft.percentiles([99.0])[0],
            mean_tpot_ms=1e3 * tpot.mean(),
            p99_tpot_ms=1e3 * tpot.percentiles([99.0])[0],
            acceptance_length=1.0 + requests.accepted / requests.verifications
            if requests.verifications
            else 1.0,
            mean_e2el_ms=1e3 * e2el.mean(),
            p99_e2el_ms=1e3 * e2el.percentiles([99.0])[0],
            slo_attainment=requests.attainment,
            gave_up=float(requests.given_up) if requests.impatient else None,
        )

    def as_dict(self) -> dict[str, float]:
        """Returns the figures by name; no attainment without limits."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class ReplicaFigures:
    """What one replica did for the completed requests, on the engine's clock, and how busy it was.

    Attributes:
        replica: its number.
        requests, output_tokens: completed.
        output_throughput: tokens a second of the whole run's duration.
        mean_queue_ms, mean_engine_ttft_ms: from the arrival to admission, and to the first token.
        gpu_busy_s, iterations: warm-ups included.
    """

    replica: int
    requests: int
    output_tokens: int
    output_throughput: float
    mean_queue_ms: float
    mean_engine_ttft_ms: float
    gpu_busy_s: float
    iterations: int

    @classmethod
    def of(
        cls,
        replica: int,
        requests: RequestSums,
        duration_s: float,
        waits_ms: tuple[float, float],
        busy_s: float,
        iterations: int,
    ) -> ReplicaFigures:
        """Returns the figures.

        Args:
            replica: its number.
            requests: sums over its requests.
            duration_s: of the whole run.
            waits_ms: mean milliseconds to admission and to the first token.
            busy_s, iterations: seconds and number of its iterations.
        """
        return cls(
            replica=replica,
            requests=requests.completed,
            output_tokens=requests.output_tokens,
            output_throughput=requests.output_tokens / duration_s if duration_s else 0.0,
            mean_queue_ms=waits_ms[0],
            mean_engine_ttft_ms=waits_ms[1],
            gpu_busy_s=busy_s,
            iterations=iterations,
        )

    def as_dict(self) -> dict[str, float]:
        """Returns the figures by name."""
        return asdict(self)
