"""Timing of GPU work: median of CUDA-graph replays. The CPU timer runs the same driver without a GPU."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Protocol

from specfleet.experiments.measure.points import DoesNotRun

Call = Callable[[], object]

LEAST_CALLS = 8
"""Calls in one replay: spreads the cost of starting it."""

_REPLAYS = 7
_REPLAY_FOR_S = 0.02
_MOST_REPLAYS = 40


def replays_of(replay_s: float) -> int:
    """Replays of a graph that takes so long: short ones are replayed more often."""
    return min(_MOST_REPLAYS, max(_REPLAYS, math.ceil(_REPLAY_FOR_S / replay_s)))


def replayed_s(calls: int, each_s: float) -> float:
    """Seconds of GPU work to time a call with so many operands: warm-up, capture's own replay, replays."""
    replay_s = math.ceil(LEAST_CALLS / calls) * calls * each_s
    return LEAST_CALLS * each_s + (2 + replays_of(replay_s)) * replay_s


class Timer(Protocol):
    """Times work. Calls do the same on different data and are made in turn."""

    def seconds(self, calls: Sequence[Call]) -> float:
        """Median seconds of one call on the device, launch gaps between kernels of a graph included."""
        ...

    def launch_s(self, call: Call) -> float:
        """Seconds that the host takes to launch one call outside a graph."""
        ...


class CudaTimer:
    """Captures the calls in one CUDA graph and takes the median of its replays, by CUDA events.

    `replays` fixes their number (ranks of one all-reduce must agree); by default short graphs are replayed
    more often.
    """

    def __init__(self, torch: ModuleType, replays: int | None = None) -> None:
        """`torch` is the module, with a CUDA device selected."""
        self._cuda = torch.cuda
        self._replays = replays

    def seconds(self, calls: Sequence[Call]) -> float:
        """As `Timer.seconds`. Raises DoesNotRun when a call fails or cannot be captured."""
        calls = list(calls) * math.ceil(LEAST_CALLS / len(calls))
        try:
            graph = self._captured(calls)
            first = self._replay_s(graph)
            count = self._replays or replays_of(first)
            return statistics.median(self._replay_s(graph) for _ in range(count)) / len(calls)
        except (RuntimeError, TypeError) as error:
            self._cuda.empty_cache()
            raise DoesNotRun(first_line(error)) from None

    def _captured(self, calls: Sequence[Call]) -> Graph:
        """Warm up outside the graph (libraries choose and load kernels there), capture, replay once."""
        stream = self._cuda.Stream()
        stream.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(stream):
            for call in calls[:LEAST_CALLS]:
                call()
        self._cuda.current_stream().wait_stream(stream)
        self._cuda.synchronize()
        graph: Graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph, capture_error_mode="thread_local"):
            for call in calls:
                call()
        graph.replay()
        return graph

    def _replay_s(self, graph: Graph) -> float:
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        self._cuda.synchronize()
        return max(1e-3 * float(start.elapsed_time(end)), 1e-9)

    def launch_s(self, call: Call) -> float:
        """As `Timer.launch_s`: the host's clock around 200 launches, median of seven."""
        for _ in range(20):
            call()
        spans = []
        for _ in range(_REPLAYS):
            self._cuda.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                call()
            spans.append((time.perf_counter() - start) / 200)
        self._cuda.synchronize()
        return statistics.median(spans)


def first_line(error: Exception) -> str:
    """What went wrong, without the stack that CUDA errors carry in their message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class Graph(Protocol):
    """A captured CUDA graph."""

    def replay(self) -> None:
        """Run everything captured."""
        ...


class CpuTimer:
    """Host clock around each call, median; what a test without a GPU uses."""

    def __init__(self, repeats: int = 3) -> None:
        """`repeats` rounds over the calls."""
        self._repeats = repeats

    def seconds(self, calls: Sequence[Call]) -> float:
        """As `Timer.seconds`."""
        calls[0]()
        return statistics.median(_span(call) for _ in range(self._repeats) for call in calls)

    def launch_s(self, call: Call) -> float:
        """As `Timer.launch_s`."""
        return self.seconds([call] * LEAST_CALLS)


def _span(call: Call) -> float:
    start = time.perf_counter()
    call()
    return max(time.perf_counter() - start, 1e-9)
