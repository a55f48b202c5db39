"""Runs whose requests are not kept: figures alone, in memory that does not grow with their number.

Requests are made, fed to the lanes of the fast path and forgotten portion by portion. That needs an open
loop behind a router that asks replicas nothing. Everything else is simulated as a whole and then summed
up, which says so in `Summary.whole`, up to `FITS` requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.gate import stranger, why_not
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.slots import Full, Requests
from specfleet.sim.calendar.stream import Stream, Watcher
from specfleet.sim.calendar.trajectories import BLOCK
from specfleet.sim.cluster import OpenArrivals
from specfleet.sim.config import Slo
from specfleet.sim.errors import SimulationError, Unsuited
from specfleet.sim.laws.everywhere import check_counts_alike
from specfleet.sim.metrics.summary import Summary
from specfleet.sim.recorder import REJECTED
from specfleet.sim.router import ROUTERS, Blind
from specfleet.sim.scenario import RunResult, Scenario
from specfleet.sim.simulation import simulate
from specfleet.sim.source import FITS, Source, Table, some_rows
from specfleet.sim.speculation.lives import Lives
from specfleet.workloads.requests import RequestTable

PORTION = 1 << 14
"""Requests made at once, at least 1,024 a replica."""
PLACES = 1 << 20
"""Most requests waiting and running at a time, over all replicas."""


def summarise(
    scenario: Scenario,
    source: Source | RequestTable,
    seed: int,
    slo: Slo | None = None,
    watch: Callable[[], Watcher] | None = None,
    portion: int | None = None,
    every_turn: bool = False,
) -> Summary:
    """Simulates requests and returns the figures of the run; nothing is kept a request or an iteration.

    Args:
        scenario: the configuration.
        source: the requests.
        seed: of acceptance luck and random routing, as `simulate`.
        slo: limits of a request for the goodput.
        watch: makes what is shown all iterations once, in portions, a replica at a time; made anew if the
            run has to begin again.
        portion: requests made at once; the figures do not depend on it.
        every_turn: as in `simulate`; all requests are held in memory for that, and the counts compared.

    Raises:
        SimulationError: the run would have to be held as a whole, and is too large for that; or as
            `simulate`.
    """
    if scenario.pools:
        raise SimulationError("figures alone are kept of equal replicas: simulate several pools as a whole")
    given: Source = Table(source) if isinstance(source, RequestTable) else source
    replicas = scenario.deployment.replicas
    size = portion or max(PORTION, 1024 * replicas)
    outline = Outline.of(scenario, given, size, seed)
    reason, summary = outline.reason, None
    if reason is None:
        try:
            summary = _streamed(
                scenario,
                given,
                outline,
                Summary(scenario, slo, outline.class_names),
                watch() if watch is not None else None,
                size,
            )
        except Unsuited as unsuited:
            reason = str(unsuited)
        except Full:
            reason = f"more than {PLACES} requests wait: the load is above what the engines can serve"
    if summary is not None and not every_turn:
        return summary
    result = _held(scenario, given, seed, reason or "laws are checked after every turn", every_turn)
    whole = Summary(scenario, slo, outline.class_names)
    whole.add(result)
    if summary is not None:
        check_counts_alike(summary.counts(), whole.counts())
        return summary
    whole.whole = reason
    if watch is not None:
        watch()(result.iterations)
    return whole


def _held(scenario: Scenario, given: Source, seed: int, reason: str, every_turn: bool) -> RunResult:
    """Simulates requests that are held in memory together, and why they are.

    Raises:
        SimulationError: they are too many for that.
    """
    if len(given) > FITS:
        raise SimulationError(
            f"{len(given)} requests are too many to be held together (at most {FITS}), and they cannot be "
            f"forgotten one by one: {reason}"
        )
    return simulate(scenario, next(iter(given.portions(len(given)))), seed, every_turn=every_turn)


@dataclass(frozen=True)
class Outline:
    """What has to be known of all requests before the first is run.

    Attributes:
        plan: the run with its longest requests in place of all; None if it cannot be streamed.
        reason: why it cannot.
        class_names: traffic classes.
    """

    plan: CalendarRun | None
    reason: str | None
    class_names: tuple[str, ...]

    @classmethod
    def of(cls, scenario: Scenario, source: Source, size: int, seed: int) -> Outline:
        """Reads all requests once, and keeps the extremes of those that are served."""
        kept: RequestTable | None = None
        segments = False
        names: tuple[str, ...] = ("default",)
        for table in source.portions(size):
            segments |= table.segment_offset is not None
            names = table.class_names
            turns = "think times: an answer lets the next turn go" if table.think_s is not None else None
            if reason := stranger(scenario, table, None) or turns or _refused(scenario, segments):
                return cls(None, reason, names)
            served = some_rows(table, CalendarRun(scenario, table, seed, None).served)
            kept = _extremes(served if kept is None else _joined(kept, served), scenario.engine.max_num_seqs)
        if kept is None or not len(kept):
            return cls(None, "no request is served", names)
        k = scenario.engine.num_speculative_tokens
        lives = Lives(scenario.acceptance, kept, k, seed) if k and scenario.acceptance else None
        if reason := stranger(scenario, kept, lives):
            return cls(None, reason, names)
        plan = CalendarRun(scenario, kept, seed, lives)
        reason = why_not(plan)
        if plan.drafting is not None:
            reason = reason or "drafts that differ from request to request"
        if plan.reaches:
            reason = reason or "requests that reach drafter_max_model_len"
        return cls(plan, reason or None, names)


def _refused(scenario: Scenario, segments: bool) -> str | None:
    """Returns why a scenario cannot be streamed whatever its requests, or None."""
    deployment = scenario.deployment
    if scenario.engine.sglang is not None:
        return "SGLang's scheduler"
    if scenario.load.max_concurrency is not None:
        return "max_concurrency: an answer lets the next request go"
    if deployment.replicas > 1 and not issubclass(ROUTERS[deployment.router], Blind):
        return f"the router {deployment.router} looks at the replicas"
    if scenario.policy is not None and scenario.engine.num_speculative_tokens:
        return f"the policy {scenario.policy.name} changes the draft length"
    if any(spec.length_rank_correlation for spec in scenario.acceptance.values()):
        return "acceptance goes with the rank of a request's length among all"
    if segments and scenario.engine.enable_prefix_caching:
        return "prefix cache hits"
    return None


def _joined(a: RequestTable, b: RequestTable) -> RequestTable:
    columns = {name: np.concatenate([getattr(a, name), getattr(b, name)]) for name in a.column_names()}
    luck = None if a.luck_id is None or b.luck_id is None else np.concatenate([a.luck_id, b.luck_id])
    return RequestTable(**columns, class_names=a.class_names, luck_id=luck)


def _extremes(table: RequestTable, most: int) -> RequestTable:
    """Returns the longest `most` requests, and those with the longest output and the shortest prompt."""
    if len(table) <= most:
        return table
    tokens = table.prompt_tokens + table.output_tokens
    longest = np.argpartition(tokens, len(tokens) - most)[len(tokens) - most :]
    others = [int(table.output_tokens.argmax()), int(table.prompt_tokens.argmin())]
    return some_rows(table, np.unique(np.append(longest, others)))


def _streamed(
    scenario: Scenario, source: Source, outline: Outline, summary: Summary, watch: Watcher | None, size: int
) -> Summary:
    """Feeds portion after portion to the lanes.

    Raises:
        Unsuited, Full: the run has to be done another way.
    """
    plan = outline.plan
    assert plan is not None
    rules = Footprints.of(plan.config, plan.longest_tokens)
    if rules is None:
        raise Unsuited("counts that do not fit in one integer")
    replicas, short = scenario.deployment.replicas, plan.never_short(rules)
    places = min(PLACES // replicas, len(source) + BLOCK) // BLOCK * BLOCK + 2 * BLOCK
    streams = [Stream(plan, rules, short, replica, places, summary, watch) for replica in range(replicas)]
    senders = Senders(plan, summary)
    for table in source.portions(size):
        requests, chosen = senders.send(table)
        for replica, stream in enumerate(streams):
            mine = {name: column[chosen == replica] for name, column in requests.items()}
            stream.feed(mine)
            stream.run()
        summary.close(min(stream.quiet_until_s for stream in streams))
    for stream in streams:
        stream.feed({name: column[:0] for name, column in requests.items()}, last=True)
        stream.run(last=True)
    summary.refusals = senders.refusals
    summary.rounds_by_accepted = _sums([stream.rounds_by_accepted for stream in streams])
    summary.check()
    return summary


def _sums(rows: Sequence[npt.NDArray[np.int64]]) -> tuple[int, ...]:
    return tuple(int(value) for value in np.sum(rows, axis=0))


class Senders:
    """The client and the router: who is sent when, who is refused, and who goes where.

    Args:
        plan: the run.
        summary: takes in those refused.

    Attributes:
        refusals: reasons with their counts.
    """

    def __init__(self, plan: CalendarRun, summary: Summary) -> None:
        self._plan, self._summary = plan, summary
        self.refusals: dict[str, int] = {}
        self._loop = OpenArrivals(plan.scenario, plan.seed)
        self._sent = 0
        self._begun = False

    def send(self, table: RequestTable) -> tuple[Requests, npt.NDArray[np.int64]]:
        """Returns the columns of successive requests that are served, and the replica of each."""
        scenario, n = self._plan.scenario, len(table)
        here = CalendarRun(scenario, table, self._plan.seed, None)
        sent_s, arrived_s = self._loop.times(table.arrival_s)
        rows = np.arange(self._sent, self._sent + n)
        names = ("prompt_tokens", "output_tokens", "max_tokens", "class_id", "temperature")
        columns = {name: getattr(table, name) for name in names}
        luck = rows if table.luck_id is None else table.luck_id
        columns |= {"row": rows, "luck_id": luck, "sent_s": sent_s, "arrived_s": arrived_s}
        self._sent += n
        warmups = scenario.load.num_warmups
        if not self._begun and (rows[here.served] >= warmups).any():
            self._summary.begin(float(sent_s[here.served][rows[here.served] >= warmups][0]))
            self._begun = True
        if len(here.refused):
            self._refuse({name: column[here.refused] for name, column in columns.items()})
            for reason, count in here.refusals().items():
                self.refusals[reason] = self.refusals.get(reason, 0) + count
        served = {name: column[here.served] for name, column in columns.items()}
        return served, self._loop.replicas(served["row"])

    def _refuse(self, columns: Requests) -> None:
        n, none = len(columns["row"]), np.zeros(len(columns["row"]), dtype=np.int64)
        columns = {**columns, "request_id": columns["row"]}
        names = (
            "cached_tokens",
            "draft_tokens",
            "preemptions",
            "verifications",
            "accepted_tokens",
            "replica",
        )
        times = ("admitted_s", "first_token_s", "finished_s", "first_chunk_s", "last_chunk_s")
        counted = columns["row"] >= self._plan.scenario.load.num_warmups
        self._summary.add_requests(
            {**columns, "counted": counted, "status": np.full(n, REJECTED)}
            | dict.fromkeys(names, none)
            | dict.fromkeys(times, np.full(n, np.nan))
        )
