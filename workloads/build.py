"""From a described workload to the table of its requests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from specfleet.workloads.arrivals import open_loop
from specfleet.workloads.classes import Mix, portions
from specfleet.workloads.lengths import LengthDistribution, correlated_uniforms
from specfleet.workloads.phases import Phase, PhasedArrivals, class_names, phase_arrivals
from specfleet.workloads.rates import RateArrivals, RateCurve
from specfleet.workloads.requests import FloatArray, IntArray, RequestTable
from specfleet.workloads.streams import Purpose, stream

__all__ = ["Purpose", "RequestStream", "WorkloadSpec", "build_requests", "stream"]


@dataclass(frozen=True)
class WorkloadSpec:
    """A synthetic workload, in the words of `vllm bench serve`.

    `num_prompts` requests are counted; `num_warmups` more come before them and are simulated but not counted.
    `max_tokens` is the cap a request states: longer outputs are cut there, shorter ones end by a stop token.
    None takes the largest output the law can give. `ignore_eos` makes every request state exactly what it
    writes. `request_rate` in requests/s (inf: all offered at 0, the closed loop's setting), `burstiness` the
    gamma shape of the gaps. `prefix_tokens` are put in front of every sampled prompt (vLLM's
    `--random-prefix-len`), shared by the requests of one of `prefix_groups` groups, drawn uniformly.
    `class_mix` lists (traffic class, weight); empty means one class "default". `phases` say rate and class in
    their place, one stretch of requests after another, warm-ups included. `curve` is a rate that changes, in
    the place of `request_rate`. With `mix` classes differ in more than their name: each has what this says of
    a request's lengths, and `input` and `output` are those of all together.

    Raises ValueError for values out of range.
    """

    num_prompts: int
    input: LengthDistribution
    output: LengthDistribution
    num_warmups: int = 0
    rank_correlation: float = 0.0
    max_tokens: int | None = None
    ignore_eos: bool = False
    request_rate: float = math.inf
    burstiness: float = 1.0
    prefix_tokens: int = 0
    prefix_groups: int = 1
    temperature: float = 0.0
    class_mix: tuple[tuple[str, float], ...] = ()
    phases: tuple[Phase, ...] = ()
    curve: RateCurve | None = None
    mix: Mix | None = None

    def __post_init__(self) -> None:
        """ValueError naming every value that is out of range."""
        names = [name for name, _ in self.class_mix]
        weights = [weight for _, weight in self.class_mix]
        checks = [
            (self.num_prompts >= 1, f"num_prompts must be at least 1, got {self.num_prompts}"),
            (self.num_warmups >= 0, f"num_warmups must not be negative, got {self.num_warmups}"),
            (
                -1 <= self.rank_correlation <= 1,
                f"rank_correlation is outside [-1, 1]: {self.rank_correlation}",
            ),
            (
                self.max_tokens is None or self.max_tokens >= 1,
                f"max_tokens must be at least 1: {self.max_tokens}",
            ),
            (self.request_rate > 0, f"request_rate must be positive or inf, got {self.request_rate}"),
            (self.burstiness > 0, f"burstiness must be positive, got {self.burstiness}"),
            (self.prefix_tokens >= 0, f"prefix_tokens must not be negative, got {self.prefix_tokens}"),
            (self.prefix_groups >= 1, f"prefix_groups must be at least 1, got {self.prefix_groups}"),
            (0 <= self.temperature < math.inf, f"temperature must be 0 or more, got {self.temperature}"),
            (len(set(names)) == len(names), f"class_mix names a class twice: {names}"),
            (all(0 < w < math.inf for w in weights), f"class_mix weights must be positive, got {weights}"),
        ]
        if self.curve is not None:
            checks.append((not self.phases, "phases and a curve both say how the rate changes"))
        if self.mix is not None:
            alone = not self.class_mix and not self.phases
            checks.append((alone, "mix, class_mix and phases each say which class a request has"))
        if self.phases:
            total = sum(phase.num_prompts for phase in self.phases)
            checks += [
                (not self.class_mix, "phases and class_mix both say which class a request has"),
                (
                    total == self.num_requests,
                    f"phases hold {total} requests, the workload {self.num_requests}",
                ),
            ]
        faults = [text for good, text in checks if not good]
        if faults:
            raise ValueError("; ".join(faults))

    @property
    def num_requests(self) -> int:
        """Rows of the table: warm-ups and counted requests."""
        return self.num_warmups + self.num_prompts


def build_requests(spec: WorkloadSpec, seed: int) -> RequestTable:
    """The `spec.num_warmups + spec.num_prompts` requests of a workload; the warm-ups are the first rows.

    Same spec and seed, same bytes. Lengths, class and prefix group of row i depend on the seed and i only:
    not on the number of rows, the rate or each other's settings. Its arrival does depend on the number of
    rows, because vLLM stretches the gaps to end at n / rate.
    """
    return next(iter(RequestStream(spec, seed).portions(spec.num_requests)))


@dataclass(frozen=True)
class RequestStream:
    """The requests of `build_requests` in portions, so that a run need not hold them all.

    Args:
        spec: the workload.
        seed: of its random numbers.
    """

    spec: WorkloadSpec
    seed: int

    def __len__(self) -> int:
        """Number of requests."""
        return self.spec.num_requests

    def portions(self, size: int) -> Iterator[RequestTable]:
        """Yields successive rows, `size` at a time; their arrivals count from the start of the run."""
        spec, n = self.spec, len(self)
        purposes = (Purpose.PROMPT, Purpose.OUTPUT, Purpose.TRAFFIC_CLASS, Purpose.PREFIX)
        draws = {purpose: stream(self.seed, purpose) for purpose in purposes}
        arrivals = self._arrivals(n if size >= n else size)
        if spec.mix is not None:
            if spec.mix.alone:
                raise ValueError("a class of sessions or of recorded requests: use class_requests")
            yield from portions(spec.mix, self.seed, n, size, arrivals)
            return
        for low in range(0, n, size):
            rows = np.arange(low, min(low + size, n), dtype=np.int64)
            yield _requests(spec, rows, draws, next(arrivals))

    def _arrivals(self, size: int) -> Iterator[FloatArray]:
        """Yields when each row is offered, `size` rows at a time."""
        spec, n, rng = self.spec, len(self), stream(self.seed, Purpose.ARRIVAL)
        if spec.curve is not None:
            changing = RateArrivals(spec.curve, spec.burstiness, rng)
            for low in range(0, n, size):
                yield changing.take(min(size, n - low))
        elif size == n and not spec.phases:
            yield open_loop(n, spec.request_rate, spec.burstiness, rng)
        elif size == n:
            yield phase_arrivals(spec.phases, spec.burstiness, rng)
        else:
            pieces = PhasedArrivals(spec.phases or (Phase(n, spec.request_rate),), spec.burstiness, rng)
            for low in range(0, n, size):
                yield pieces.take(min(size, n - low))


def _requests(
    spec: WorkloadSpec, rows: IntArray, draws: Mapping[Purpose, np.random.Generator], arrival_s: FloatArray
) -> RequestTable:
    """Returns successive rows, drawing the next numbers of each stream."""
    n = len(rows)
    u, v = draws[Purpose.PROMPT].random(n), draws[Purpose.OUTPUT].random(n)
    prompt = spec.input.quantile(u)
    output = spec.output.quantile(correlated_uniforms(u, v, spec.rank_correlation))
    cap = spec.output.maximum if spec.max_tokens is None else spec.max_tokens
    output = np.minimum(output, cap)
    segments = _prefix_segments(spec, prompt, rows, draws[Purpose.PREFIX]) if spec.prefix_tokens else None
    return RequestTable.of(
        prompt + spec.prefix_tokens,
        output,
        arrival_s=arrival_s,
        max_tokens=output if spec.ignore_eos else np.full(n, cap, dtype=np.int64),
        class_id=_classes(spec, rows, draws[Purpose.TRAFFIC_CLASS]),
        temperature=spec.temperature,
        class_names=class_names(spec.phases) or [name for name, _ in spec.class_mix] or ["default"],
        segments=segments,
    )


def _classes(spec: WorkloadSpec, rows: IntArray, rng: np.random.Generator) -> IntArray:
    """Traffic class of each row: its phase's, or drawn by weight; all 0 without phases and mix."""
    if spec.phases:
        ends = np.cumsum([phase.num_prompts for phase in spec.phases])
        names = class_names(spec.phases)
        classes = np.array([names.index(phase.traffic_class) for phase in spec.phases], dtype=np.int64)
        return classes[np.searchsorted(ends, rows, side="right")]
    if not spec.class_mix:
        return np.zeros(len(rows), dtype=np.int64)
    bounds = np.cumsum([weight for _, weight in spec.class_mix])
    return np.searchsorted(bounds / bounds[-1], rng.random(len(rows)), side="right").astype(np.int64)


def _prefix_segments(
    spec: WorkloadSpec, prompt: IntArray, rows: IntArray, rng: np.random.Generator
) -> tuple[IntArray, IntArray, IntArray]:
    """(offset, stream, tokens): two segments a row, the group's shared prefix and the row's private rest.

    Group g is stream -1 - g, the private rest of row i stream i.
    """
    n = len(prompt)
    group = np.floor(rng.random(n) * spec.prefix_groups).astype(np.int64)
    streams = np.stack([-1 - group, rows], axis=1).ravel()
    tokens = np.stack([np.full(n, spec.prefix_tokens, dtype=np.int64), prompt], axis=1).ravel()
    return np.arange(0, 2 * n + 1, 2, dtype=np.int64), streams, tokens
