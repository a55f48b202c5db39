"""The figures of a run without its requests: sums, peaks and histograms, filled portion by portion.

They are defined where those of a whole run are (`figures`, `sums`). Counts are exact, means differ from
a whole run's by rounding alone, percentiles are within `tally.ERROR`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from specfleet.sim.config import Slo
from specfleet.sim.laws.requests import check_requests
from specfleet.sim.laws.steps import StepLaws
from specfleet.sim.laws.whole import Totals
from specfleet.sim.metrics.figures import (
    LATENCIES,
    ClassFigures,
    EngineLoad,
    Figures,
    ReplicaFigures,
    SpecDecode,
)
from specfleet.sim.metrics.samples import per_token
from specfleet.sim.metrics.seconds import Seconds
from specfleet.sim.metrics.sums import Counted, IterationSums, RequestSums, present, step_gaps
from specfleet.sim.metrics.tally import Tally
from specfleet.sim.pauses import alike
from specfleet.sim.recorder import Columns
from specfleet.sim.scenario import RunResult, Scenario


class Summary:
    """What is known of a run when its requests are forgotten.

    Args:
        scenario: what is run.
        slo: limits of a request, or None.
        class_names: traffic classes, in order of `class_id`.

    Attributes:
        all: sums over all requests.
        tokens: emitted, warm-ups included.
        rounds_by_accepted, refusals, steps_without_drafter, stepped_share, stepped_because: as in
            `RunResult`.
        shares: of a fleet, that were simulated apart from each other.
        whole: why the requests could not be forgotten while it ran; None: they were.
    """

    def __init__(self, scenario: Scenario, slo: Slo | None, class_names: Sequence[str]) -> None:
        self.scenario, self.class_names = scenario, tuple(class_names)
        replicas = scenario.deployment.replicas
        self.all = RequestSums(slo)
        self.tokens = 0
        several = range(len(class_names)) if len(class_names) > 1 else ()
        self._classes = [(RequestSums(slo), Tally(), Tally(), Tally()) for _ in several]
        self._replicas = [RequestSums() for _ in range(replicas)] if replicas > 1 else [self.all]
        self._latencies = {name: Tally() for name in LATENCIES}
        self._seconds: Seconds | None = None
        self._iterations = IterationSums(scenario.stages)
        self._busy_s, self._steps = [0.0] * replicas, [0] * replicas
        self.rounds_by_accepted: tuple[int, ...] = ()
        self.refusals: Mapping[str, int] = {}
        self.steps_without_drafter = 0
        self.stepped_share, self.stepped_because = 0.0, ""
        self.whole: str | None = None
        self.shares = 1
        self._step_laws, self._totals = (
            StepLaws(scenario),
            Totals(stages=scenario.engine.pipeline_parallel_size),
        )

    def begin(self, start_s: float) -> None:
        """Says when the first request is sent that is counted and served."""
        self._seconds = Seconds(start_s, self.scenario.client.receive_s)

    def add_requests(self, columns: Columns) -> None:
        """Takes in requests that have ended (`RunResult.requests`, any rows in any order).

        Raises:
            Breach: a law does not hold of one of them.
        """
        served = check_requests(self.scenario.engine, columns)
        self.tokens += int(served["output_tokens"].sum())
        self._totals.add_requests(served, len(columns["status"]) - len(served["status"]))
        counted = Counted.of(columns)
        self.all.add(columns, counted)
        if self._classes:
            for class_id, mine in present(columns, "class_id"):
                (sums, ttft, tpot, e2el), own = self._classes[class_id], Counted.of(mine)
                sums.add(mine, own)
                ttft.add(own.ttft_s)
                tpot.add(own.tpot_sample_s)
                e2el.add(own.e2el_s)
        if len(self._replicas) > 1:
            for replica, mine in present(columns, "replica"):
                self._replicas[replica].add(mine, Counted.of(mine))
        if not len(counted.sent_s):
            return
        self._latencies["ttft"].add(counted.ttft_s)
        self._latencies["tpot"].add(counted.tpot_sample_s)
        self._latencies["e2el"].add(counted.e2el_s)
        assert self._seconds is not None
        self._seconds.add_requests(counted)

    def add_iterations(self, columns: Columns, replica: int, before_s: float) -> None:
        """Takes in successive iterations of a replica (columns as `RunResult.iterations`).

        Args:
            columns: a row an iteration.
            replica: whose.
            before_s: end of the iteration before the first; inf if there is none.

        Raises:
            Breach: a law does not hold of one of them.
        """
        self._step_laws.check(columns)
        self._totals.add_iterations(columns)
        self._busy_s[replica] += self._iterations.add(columns)
        self._steps[replica] += len(columns["end_s"])
        chunks = columns["gaps_by_tokens"]
        each = chunks.sum(axis=1, dtype=np.int64)
        if not each.any():
            return
        pauses = step_gaps(columns, before_s)
        pauses[each == 0] = 0.0  # nobody waited for these
        self._latencies["itl"].add(pauses, each)
        for values, weights in per_token(pauses, chunks):
            self._latencies["itl_per_token"].add(values, weights)
        assert self._seconds is not None
        self._seconds.add_iterations(columns["end_s"], each)

    def add_gaps(self, columns: Columns) -> None:
        """Takes in pauses of more than one iteration (columns as `RunResult.odd_gaps`)."""
        self._totals.add_gaps(columns)
        odd = alike(columns)
        if not len(odd.gap_s):
            return
        self._latencies["itl"].add(odd.gap_s, odd.chunks.sum(axis=1))
        for values, weights in per_token(odd.gap_s, odd.chunks):
            self._latencies["itl_per_token"].add(values, weights)
        assert self._seconds is not None
        self._seconds.add_gaps(columns)

    def check(self) -> None:
        """Checks the laws of the whole run, once all of it was taken in.

        Raises:
            Breach: one does not hold.
        """
        self._totals.check(self.scenario, self.refusals, self.rounds_by_accepted)

    def counts(self) -> dict[str, object]:
        """Returns what is the same to the last unit, whether requests were kept or forgotten."""
        names = (
            *("counted", "completed", "prompt_tokens", "output_tokens", "cached_tokens", "draft_tokens"),
            *("preemptions", "verifications", "accepted"),
        )
        return {name: getattr(self.all, name) for name in names} | {
            "iterations": self.steps,
            "rounds by accepted drafts": tuple(self.rounds_by_accepted),
            "refusals": dict(self.refusals),
        }

    def close(self, before_s: float) -> None:
        """Says that nothing more is to come from before a time, which frees a little memory."""
        if self._seconds is not None:
            self._seconds.close(before_s)

    def merge(self, other: Summary) -> None:
        """Takes in what is known of other replicas of the same run; no second of either may be closed."""
        self.all.merge(other.all)
        self.tokens += other.tokens
        for mine, theirs in zip(self._classes, other._classes, strict=True):
            mine[0].merge(theirs[0])
            for tally, more in zip(mine[1:], theirs[1:], strict=True):
                tally.merge(more)
        for sums, others in zip(self._replicas, other._replicas, strict=True):
            sums.merge(others)
        for name, latency in self._latencies.items():
            latency.merge(other._latencies[name])
        if self._seconds is not None and other._seconds is not None:
            self._seconds.merge(other._seconds)
        self._iterations.merge(other._iterations)
        self._busy_s = [a + b for a, b in zip(self._busy_s, other._busy_s, strict=True)]
        self._steps = [a + b for a, b in zip(self._steps, other._steps, strict=True)]
        self._totals.merge(other._totals)
        pairs = zip(self.rounds_by_accepted, other.rounds_by_accepted, strict=True)
        self.rounds_by_accepted = tuple(a + b for a, b in pairs)
        self.refusals = dict(self.refusals) | dict(other.refusals)
        self.steps_without_drafter += other.steps_without_drafter
        self.shares += other.shares

    def add(self, result: RunResult) -> None:
        """Takes in a whole run."""
        counted = Counted.of(result.requests)
        self.begin(float(counted.sent_s.min(initial=0.0 if not len(counted.sent_s) else inf)))
        self.add_requests(result.requests)
        for replica, mine in present(result.iterations, "replica"):
            self.add_iterations(mine, replica, inf)
        self.add_gaps(result.odd_gaps)
        self.rounds_by_accepted, self.refusals = result.rounds_by_accepted, result.refusals
        self.steps_without_drafter = result.steps_without_drafter
        self.stepped_share, self.stepped_because = result.stepped_share, result.stepped_because

    @property
    def steps(self) -> int:
        """Iterations."""
        return self._iterations.steps

    def benchmark(self) -> Figures:
        """Returns what `vllm bench serve` prints of the run."""
        seconds = self._seconds
        drafts = self.scenario.engine.num_speculative_tokens > 0
        return Figures.of(
            self.all,
            (0, 0) if seconds is None or not self.all.completed else seconds.peaks(),
            SpecDecode.of(self.rounds_by_accepted, self.all.draft_tokens) if drafts else None,
            self._latencies,
        )

    def engine_load(self) -> EngineLoad | None:
        """Returns how busy the engines were; None if nothing ran."""
        busy_s = sum(self._busy_s)
        return EngineLoad.of(self.scenario, self.all, self._iterations, busy_s, self.steps_without_drafter)

    def by_class(self) -> dict[str, ClassFigures]:
        """Returns the figures of each traffic class; empty for a single class."""
        return {
            name: ClassFigures.of(sums, ttft, tpot, e2el)
            for name, (sums, ttft, tpot, e2el) in zip(self.class_names, self._classes, strict=False)
        }

    def by_replica(self) -> list[ReplicaFigures]:
        """Returns what each replica did."""
        found = []
        for index, sums in enumerate(self._replicas):
            several = max(sums.completed, 1)
            waits_ms = 1e3 * sums.queue_s / several, 1e3 * sums.engine_ttft_s / several
            found.append(
                ReplicaFigures.of(
                    index, sums, self.all.duration_s, waits_ms, self._busy_s[index], self._steps[index]
                )
            )
        return found
