"""Processes whose means and percentiles are known, to hold intervals against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import exp, factorial, fsum, log
from statistics import NormalDist

import numpy as np
from scipy.signal import lfilter
from sim_toys import ToyCost

from specfleet.sim.config import EngineConfig, LoadConfig
from specfleet.sim.simulation import Scenario, simulate
from specfleet.sim.statistics.flow import Flow
from specfleet.sim.statistics.series import F64
from specfleet.workloads.requests import RequestTable

Portions = Callable[[int], F64]
"""Gives so many further values of one run."""


class Waits:
    """Waiting times in a queue with one server, from empty; the mean service takes 1.

    Args:
        rng: of arrivals and services.
        load: arrivals per service.
        alike: all services take as long (M/D/1), or as long as chance has it (M/M/1).
        faster: services take this share of the time, on the same numbers.
    """

    def __init__(
        self, rng: np.random.Generator, load: float, alike: bool = False, faster: float = 1.0
    ) -> None:
        self.rng, self.load, self.alike, self.faster = rng, load, alike, faster
        self.wait = 0.0

    def __call__(self, n: int) -> F64:
        """Returns the waits of the next n customers."""
        between = self.rng.exponential(1.0 / self.load, n)
        services = np.ones(n) if self.alike else self.rng.exponential(1.0, n)
        walk = self.wait + np.concatenate([[0.0], np.cumsum(self.faster * services - between)])
        waits = walk - np.minimum(np.minimum.accumulate(walk), 0.0)
        self.wait = float(waits[-1])
        return np.asarray(waits[:-1])


class Wandering:
    """Normal values around 10, each correlated with the one before."""

    def __init__(self, rng: np.random.Generator, correlation: float) -> None:
        self.rng, self.correlation = rng, correlation
        self.last = float(rng.normal())

    def __call__(self, n: int) -> F64:
        """Returns the next n values."""
        shocks = self.rng.normal(size=n) * np.sqrt(1.0 - self.correlation**2)
        values, _ = lfilter([1.0], [1.0, -self.correlation], shocks, zi=[self.correlation * self.last])
        self.last = float(values[-1])
        return np.asarray(10.0 + values)


def mm1_mean(load: float, faster: float = 1.0) -> float:
    """Mean wait in M/M/1."""
    used = load * faster
    return faster * used / (1.0 - used)


def mm1_percentile(load: float, percent: float, faster: float = 1.0) -> float:
    """Percentile of the wait in M/M/1: P(W > x) = used exp(-(rate of service - rate of arrivals) x)."""
    return log(load * faster / (1.0 - percent / 100.0)) / (1.0 / faster - load)


@cache
def md1_percentile(load: float, percent: float) -> float:
    """Percentile of the wait in M/D/1, from Erlang's alternating series."""

    def below(x: float) -> float:
        terms = ((load * (i - x)) ** i / factorial(i) * exp(-load * (i - x)) for i in range(int(x) + 1))
        return (1.0 - load) * fsum(terms)

    low, high = 0.0, 30.0
    while high - low > 1e-9:
        middle = (low + high) / 2.0
        low, high = (middle, high) if below(middle) < percent / 100.0 else (low, middle)
    return low


@dataclass(frozen=True)
class Process:
    """A source of values with known truths.

    Attributes:
        name: for tables.
        start: makes a run from a generator of chance.
        mean, p99: the truths.
    """

    name: str
    start: Callable[[np.random.Generator], Portions]
    mean: float
    p99: float


def _alone(draw: Callable[[np.random.Generator, int], F64]) -> Callable[[np.random.Generator], Portions]:
    return lambda rng: lambda n: draw(rng, n)


Z99 = NormalDist().inv_cdf(0.99)
PROCESSES = (
    Process("M/M/1 0.7", lambda rng: Waits(rng, 0.7), mm1_mean(0.7), mm1_percentile(0.7, 99.0)),
    Process("M/M/1 0.9", lambda rng: Waits(rng, 0.9), mm1_mean(0.9), mm1_percentile(0.9, 99.0)),
    Process("M/D/1 0.7", lambda rng: Waits(rng, 0.7, True), 0.7 / 0.6, md1_percentile(0.7, 99.0)),
    Process("M/D/1 0.9", lambda rng: Waits(rng, 0.9, True), 0.9 / 0.2, md1_percentile(0.9, 99.0)),
    Process("AR(1) 0.9", lambda rng: Wandering(rng, 0.9), 10.0, 10.0 + Z99),
    Process(
        "lognormal", _alone(lambda rng, n: rng.lognormal(0.0, 1.0, n)), exp(0.5), exp(2.3263478740408408)
    ),
    Process("Pareto 3", _alone(lambda rng, n: rng.pareto(3.0, n) + 1.0), 1.5, 0.01 ** (-1.0 / 3.0)),
)


def bursty(rng: np.random.Generator, n: int) -> F64:
    """Sojourn times of a queue to which 300 of 10,000 requests come three times as fast as it serves."""
    lengths = np.stack([rng.exponential(9_700.0, 40), rng.exponential(300.0, 40)], axis=1).ravel()
    inside = np.searchsorted(np.cumsum(lengths), np.arange(n)) % 2 == 1
    service = rng.exponential(0.5, n)
    work = np.concatenate(
        [[0.0], np.cumsum(service[:-1] - rng.exponential(size=n - 1) / (1.0 + 5.0 * inside[1:]))]
    )
    return np.asarray(work - np.minimum.accumulate(work) + service)


def queue_flow(rng: np.random.Generator, load: float, n: int) -> tuple[Flow, F64]:
    """Returns the requests of an M/M/1 queue that starts empty, and their waits."""
    sent = np.cumsum(rng.exponential(1.0 / load, n))
    services = rng.exponential(1.0, n)
    walk = np.concatenate([[0.0], np.cumsum(services[:-1] - np.diff(sent))])
    waits = np.asarray(walk - np.minimum.accumulate(walk))
    return Flow(sent, sent + waits + services), waits


ENGINE = EngineConfig(
    max_num_seqs=32, max_num_batched_tokens=1024, num_gpu_blocks=100_001, max_model_len=100_000
)


@dataclass(frozen=True)
class Served:
    """What the requests of a simulated run met, in order of sending."""

    flow: Flow
    ttft_s: F64
    tpot_s: F64
    output_tokens: F64


def serve(seed: int, n: int, users: int | None = None, rate: float = 0.0, token_s: float = 1e-4) -> Served:
    """Simulates a plain engine in front of a closed loop of `users`, or an open loop at `rate`.

    Lengths and arrivals are the same for equal seeds, whatever a token costs. At the default cost the
    engine serves some 21 requests/s.
    """
    rng = np.random.default_rng([seed, 11])
    output = np.clip(rng.lognormal(3.2, 0.6, n), 2, 300).astype(np.int64)
    prompt = np.clip(rng.lognormal(5.0, 0.8, n), 1, 2000).astype(np.int64)
    arrivals = np.zeros(n) if users else np.cumsum(rng.exponential(1.0 / rate, n))
    scenario = Scenario(ENGINE, ToyCost(0.02, 0.005, token_s), load=LoadConfig(max_concurrency=users))
    table = RequestTable.of(prompt, output, arrival_s=arrivals)
    columns = simulate(scenario, table, seed).requests
    sent, first, last = (columns[name] for name in ("sent_s", "first_chunk_s", "last_chunk_s"))
    flow, order = Flow.of(sent, last)
    tokens = columns["output_tokens"].astype(np.float64)
    tpot = (last - first) / np.maximum(tokens - 1.0, 1.0)
    return Served(flow, *(column[order] for column in (first - sent, tpot, tokens)))
