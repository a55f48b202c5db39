"""The figures of a run without its requests: sums, peaks and histograms, filled portion by portion.

`Summary.benchmark`, `engine_load`, `by_class` and `by_replica` have the keys of `sim.metrics`. Counts are
exact, means differ by rounding alone, percentiles are within `tally.ERROR`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from specfleet.sim.config import Slo
from specfleet.sim.metrics import Counted, Value, spec_decode, statistics, throughput
from specfleet.sim.recorder import FINISHED, Columns
from specfleet.sim.samples import dot
from specfleet.sim.scenario import RunResult, Scenario
from specfleet.sim.seconds import Seconds
from specfleet.sim.tally import F64, Tally

LATENCIES = ("ttft", "tpot", "itl", "e2el", "itl_per_token")


class Part:
    """Sums over some of the requests: all of them, those of a class, or those of a replica.

    Attributes:
        counted, completed: requests that are measured; those of them that finished.
        prompt, output: tokens of those completed; asked: prompt tokens of those counted.
        cached, drafted, preemptions: tokens and events of those counted.
        rounds, accepted: verifications and accepted drafts, warm-ups included.
        queue_s, engine_ttft_s: seconds from the arrival to admission and to the first token, completed.
        ttft, tpot: on the client's clock.
    """

    def __init__(self) -> None:
        self.counted = self.completed = self.prompt = self.output = self.asked = 0
        self.cached = self.drafted = self.preemptions = self.rounds = self.accepted = 0
        self.queue_s = self.engine_ttft_s = 0.0

    def add(self, columns: Columns, counted: Counted) -> None:
        """Takes in requests; `counted` are those of them that are counted and finished."""
        measured = columns["counted"] == 1
        done = measured & (columns["status"] == FINISHED)
        self.counted += int(measured.sum())
        self.completed += len(counted.sent_s)
        self.prompt += int(counted.prompt_tokens.sum())
        self.output += int(counted.output_tokens.sum())
        self.asked += int(columns["prompt_tokens"][measured].sum())
        self.cached += int(columns["cached_tokens"][measured].sum())
        self.drafted += int(columns["draft_tokens"][measured].sum())
        self.preemptions += int(columns["preemptions"][measured].sum())
        self.rounds += int(columns["verifications"].sum())
        self.accepted += int(columns["accepted_tokens"].sum())
        arrived = columns["arrived_s"][done]
        self.queue_s += float((columns["admitted_s"][done] - arrived).sum())
        self.engine_ttft_s += float((columns["first_token_s"][done] - arrived).sum())


class Summary:
    """What is known of a run when its requests are forgotten.

    Args:
        scenario: what is run.
        slo: limits of a request, or None.
        class_names: traffic classes, in order of `class_id`.

    Attributes:
        steps: iterations. busy_s: their seconds.
        rounds_by_accepted, refusals, steps_without_drafter, stepped_share: as in `RunResult`.
        whole: why the requests could not be forgotten while it ran; None: they were.
    """

    def __init__(self, scenario: Scenario, slo: Slo | None, class_names: Sequence[str]) -> None:
        self.scenario, self.slo, self.class_names = scenario, slo, tuple(class_names)
        replicas = scenario.deployment.replicas
        self.all = Part()
        several = range(len(class_names)) if len(class_names) > 1 else ()
        self._classes = [(Part(), Tally(), Tally()) for _ in several]
        self._replicas = [Part() for _ in range(replicas)] if replicas > 1 else [self.all]
        self.tallies = {name: Tally() for name in LATENCIES}
        self._attained = 0
        self._first_sent_s, self._last_s = inf, -inf
        self._seconds: Seconds | None = None
        self.steps = 0
        self._busy_s, self._steps = [0.0] * replicas, [0] * replicas
        self._decoding = self._batch = self._most_blocks = 0
        self._running_s = self._waiting_s = 0.0
        self._start_s, self._end_s = inf, -inf
        self.rounds_by_accepted: tuple[int, ...] = ()
        self.refusals: Mapping[str, int] = {}
        self.steps_without_drafter = 0
        self.stepped_share = 0.0
        self.whole: str | None = None

    def begin(self, start_s: float) -> None:
        """Says when the first request is sent that is counted and served."""
        self._seconds = Seconds(start_s)

    def add_requests(self, columns: Columns) -> None:
        """Takes in requests that have ended (`RunResult.requests`, any rows in any order)."""
        counted = Counted.of(columns)
        self.all.add(columns, counted)
        for index, (part, ttft, tpot) in enumerate(self._classes):
            chosen = columns["class_id"] == index
            mine = {name: values[chosen] for name, values in columns.items()}
            own = Counted.of(mine)
            part.add(mine, own)
            ttft.add(own.ttft_s)
            tpot.add(own.tpot_s[own.output_tokens > 1])
        if len(self._replicas) > 1:
            for index in np.unique(columns["replica"]).tolist():
                mine = {name: values[columns["replica"] == index] for name, values in columns.items()}
                self._replicas[index].add(mine, Counted.of(mine))
        if not len(counted.sent_s):
            return
        self.tallies["ttft"].add(counted.ttft_s)
        self.tallies["tpot"].add(counted.tpot_s[counted.output_tokens > 1])
        self.tallies["e2el"].add(counted.e2el_s)
        if self.slo is not None:
            self._attained += int(counted.attained(self.slo).sum())
        last_s = counted.sent_s + counted.e2el_s
        self._first_sent_s = min(self._first_sent_s, float(counted.sent_s.min()))
        self._last_s = max(self._last_s, float(last_s.max()))
        assert self._seconds is not None
        self._seconds.requests(counted.sent_s, last_s)
        self._seconds.chunks(counted.sent_s + counted.ttft_s)

    def add_iterations(self, columns: Columns, replica: int, before_s: float) -> None:
        """Takes in successive iterations of a replica (columns as `RunResult.iterations`).

        Args:
            columns: a row an iteration.
            replica: whose.
            before_s: end of the iteration before the first; inf if there is none.
        """
        start, end = columns["start_s"], columns["end_s"]
        if not len(end):
            return
        seconds = end - start
        self.steps += len(end)
        self._steps[replica] += len(end)
        self._busy_s[replica] += float(seconds.sum())
        decoding = columns["decode_sequences"]
        self._decoding += int((decoding > 0).sum())
        self._batch += int(decoding.sum())
        self._most_blocks = max(self._most_blocks, int(columns["kv_blocks_used"].max()))
        self._running_s += dot(seconds, columns["running"])
        self._waiting_s += dot(seconds, columns["waiting"])
        self._start_s, self._end_s = (
            min(self._start_s, float(start.min())),
            max(self._end_s, float(end.max())),
        )
        self._add_pauses(columns["gaps_by_tokens"], end, before_s)

    def _add_pauses(self, chunks: F64, end: F64, before_s: float) -> None:
        each = chunks.sum(axis=1, dtype=np.int64)
        if not each.any():
            return
        pauses = np.diff(end, prepend=before_s)
        pauses[each == 0] = 0.0  # nobody waited for these
        self.tallies["itl"].add(pauses, each)
        for tokens in range(1, chunks.shape[1]):
            count = chunks[:, tokens].astype(np.int64)
            self.tallies["itl_per_token"].add(pauses / tokens, count * tokens)
        assert self._seconds is not None
        seen = each > 0
        self._seconds.chunks(end[seen] + self.scenario.client.receive_s, each[seen])

    def add_gaps(self, columns: Columns) -> None:
        """Takes in pauses of more than one iteration (columns as `RunResult.odd_gaps`)."""
        odd = columns["counted"] == 1
        if not odd.any():
            return
        pauses, tokens = columns["gap_s"][odd], columns["tokens"][odd]
        self.tallies["itl"].add(pauses)
        self.tallies["itl_per_token"].add(pauses / np.maximum(tokens, 1), tokens)
        assert self._seconds is not None
        self._seconds.chunks(columns["end_s"][odd] + self.scenario.client.receive_s)

    def close(self, before_s: float) -> None:
        """Says that nothing more is to come from before a time, which frees a little memory."""
        if self._seconds is not None:
            self._seconds.forget(before_s)

    def add(self, result: RunResult) -> None:
        """Takes in a whole run."""
        counted = Counted.of(result.requests)
        self.begin(float(counted.sent_s.min(initial=0.0 if not len(counted.sent_s) else inf)))
        self.add_requests(result.requests)
        for replica in np.unique(result.iterations["replica"]).tolist():
            rows = result.iterations["replica"] == replica
            self.add_iterations({name: v[rows] for name, v in result.iterations.items()}, replica, inf)
        self.add_gaps(result.odd_gaps)
        self.rounds_by_accepted, self.refusals = result.rounds_by_accepted, result.refusals
        self.steps_without_drafter = result.steps_without_drafter
        self.stepped_share = result.stepped_share

    @property
    def duration_s(self) -> float:
        """First send to last completion; 0 if nothing finished."""
        return self._last_s - self._first_sent_s if self.all.completed else 0.0

    @property
    def attainment(self) -> float | None:
        """Share of the completed requests that met the limits; None without limits or requests."""
        if self.slo is None or not self.all.completed:
            return None
        return self._attained / self.all.completed

    def benchmark(self) -> dict[str, Value]:
        """As `metrics.benchmark`."""
        every, seconds = self.all, self._seconds
        values = throughput(
            self.duration_s,
            (every.completed, every.counted - every.completed),
            (every.prompt, every.output),
            None if self.slo is None else self._attained,
            (0, 0) if seconds is None or not every.completed else seconds.peaks(),
        )
        if self.scenario.engine.num_speculative_tokens:
            values |= spec_decode(self.rounds_by_accepted, every.drafted)
        for name, tally in self.tallies.items():
            values |= statistics(name, tally)
        return values

    def engine_load(self) -> dict[str, float]:
        """As `metrics.engine_load`."""
        if not self.steps:
            return {}
        every = self.all
        span = (self._end_s - self._start_s) * self.scenario.deployment.replicas
        return {
            "mean_batch": self._batch / self._decoding if self._decoding else 0.0,
            "mean_running": self._running_s / span,
            "mean_waiting": self._waiting_s / span,
            "peak_kv_usage": self._most_blocks / self.scenario.engine.usable_blocks,
            "gpu_busy": sum(self._busy_s) / span,
            "preemptions": float(every.preemptions),
            "rejected": float(every.counted - every.completed),
            "prefix_hit_share": every.cached / max(every.asked, 1),
            "drafter_off_share": self.steps_without_drafter / self.steps,
        }

    def by_class(self) -> dict[str, dict[str, float]]:
        """As `metrics.by_class`; empty for a single class."""
        return {
            name: {
                "completed": float(part.completed),
                "output_tokens": float(part.output),
                "mean_ttft_ms": 1e3 * ttft.mean(),
                "p99_ttft_ms": 1e3 * ttft.percentiles([99.0])[0],
                "mean_tpot_ms": 1e3 * tpot.mean(),
                "p99_tpot_ms": 1e3 * tpot.percentiles([99.0])[0],
                "acceptance_length": 1.0 + part.accepted / part.rounds if part.rounds else 1.0,
            }
            for name, (part, ttft, tpot) in zip(self.class_names, self._classes, strict=False)
        }

    def by_replica(self) -> list[Mapping[str, float]]:
        """As `metrics.by_replica`."""
        span = self.duration_s
        return [
            {
                "replica": index,
                "requests": part.completed,
                "output_tokens": part.output,
                "output_throughput": part.output / span if span else 0.0,
                "mean_queue_ms": 1e3 * part.queue_s / part.completed if part.completed else 0.0,
                "mean_engine_ttft_ms": 1e3 * part.engine_ttft_s / part.completed if part.completed else 0.0,
                "gpu_busy_s": self._busy_s[index],
                "iterations": self._steps[index],
            }
            for index, part in enumerate(self._replicas)
        ]
