"""Laws of a whole run: what all its requests did is what all its iterations did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specfleet.sim.config import EngineConfig
from specfleet.sim.errors import Breach
from specfleet.sim.laws.names import BUSY, CAUSES, ENDS_ONCE, IN_FLIGHT, LITTLE, TOKENS, first, request_breach
from specfleet.sim.laws.requests import aborted, check_drafts, check_emitted, check_requests, over_s
from specfleet.sim.laws.steps import CLOCK_ROUNDING, ROUNDING, StepLaws
from specfleet.sim.pauses import LatePauses
from specfleet.sim.recorder import ABORTED, GAVE_UP, LOST, REJECTED, Columns, alone_s
from specfleet.sim.scenario import RunResult, Scenario
from specfleet.sim.sglang.rules import SglangRules
from specfleet.workloads.requests import RequestTable

PORTION = 1 << 16
"""Requests looked at together where what is worked out for each would be as much as its columns."""
_CUT = (("replica", "replica"), ("start_s", "start_s"), ("end_s", "start_s"))
"""Columns of iterations, and those of steps that were cut short in their place."""


@dataclass
class Totals:
    """Sums over requests and iterations, which two laws compare.

    Attributes:
        served, refused: requests; one that SGLang gives up is among both.
        inside_s: seconds from arrival to the end, over those served.
        present_s: requests running and waiting times the seconds of the iteration, over iterations.
        busy_s, running_s: seconds of iterations; the same times the sequences that run.
        longest_s: the longest iteration.
        start_s, end_s: of the first and the last iteration.
        emitted, chunked: tokens of counted requests after the first of each; the same by the chunks of steps.
        verifications, accepted: of counted requests.
        stages: of a pipeline; with several, seconds of an iteration are those after the one before has ended.
    """

    served: int = 0
    refused: int = 0
    inside_s: float = 0.0
    present_s: float = 0.0
    busy_s: float = 0.0
    running_s: float = 0.0
    longest_s: float = 0.0
    start_s: float = np.inf
    end_s: float = -np.inf
    emitted: int = 0
    chunked: int = 0
    verifications: int = 0
    accepted: int = 0
    stages: int = 1

    def add_requests(self, rows: Columns, refused: int) -> None:
        """Takes in requests that were begun, and the number of those refused or given up with them."""
        self.served += len(rows["status"])
        self.refused += refused
        self.inside_s += float(rows["finished_s"].sum() - rows["arrived_s"].sum())
        counted = slice(None) if rows["counted"].all() else rows["counted"] == 1
        output = rows["output_tokens"][counted]
        self.emitted += int(output.sum()) - int((output > 0).sum())
        self.verifications += int(rows["verifications"][counted].sum())
        self.accepted += int(rows["accepted_tokens"][counted].sum())

    def add_iterations(self, rows: Columns) -> None:
        """Takes in iterations."""
        if not len(rows["end_s"]):
            return
        taken = rows["end_s"] - rows["start_s"]
        seconds = alone_s(rows) if self.stages > 1 else taken
        running = float((rows["running"] * seconds).sum())
        self.running_s += running
        self.present_s += running + float((rows["waiting"] * seconds).sum())
        self.busy_s += float(seconds.sum())
        self.longest_s = max(self.longest_s, float(taken.max()))
        self.start_s = min(self.start_s, float(rows["start_s"].min()))
        self.end_s = max(self.end_s, float(rows["end_s"].max()))
        chunks = rows["gaps_by_tokens"].sum(axis=0, dtype=np.int64)
        self.chunked += int(chunks @ np.arange(len(chunks)))

    def merge(self, other: Totals) -> None:
        """Takes in the sums over other replicas' requests and iterations."""
        self.served += other.served
        self.refused += other.refused
        self.inside_s += other.inside_s
        self.present_s += other.present_s
        self.busy_s += other.busy_s
        self.running_s += other.running_s
        self.longest_s = max(self.longest_s, other.longest_s)
        self.start_s, self.end_s = min(self.start_s, other.start_s), max(self.end_s, other.end_s)
        self.emitted += other.emitted
        self.chunked += other.chunked
        self.verifications += other.verifications
        self.accepted += other.accepted

    def add_gaps(self, gaps: Columns) -> None:
        """Takes in pauses of more than one iteration, each of which a chunk ends."""
        if isinstance(gaps, LatePauses):
            self.chunked += gaps.alike.tokens()
            return
        on_one_replica = (gaps["counted"] == 1) & (gaps["from_iteration"] >= 0)
        self.chunked += int(gaps["tokens"][on_one_replica].sum())

    def add_standing(self, standing: Columns) -> None:
        """Takes in times at which a replica stood still, with requests that waited for others."""
        if standing:
            self.present_s += float((standing["waiting"] * (standing["end_s"] - standing["start_s"])).sum())

    def check(
        self, scenario: Scenario, refusals: Mapping[str, int], rounds_by_accepted: Sequence[int]
    ) -> None:
        """Checks the sums against one another, and against what the run counted apart.

        Args:
            scenario: what was run.
            refusals, rounds_by_accepted: as in `RunResult`.

        Raises:
            Breach: a law does not hold.
        """
        if self.refused != sum(refusals.values()):
            said = f"{self.refused} requests were refused, for {sum(refusals.values())} reasons"
            raise Breach(ENDS_ONCE, said)
        if self.emitted != self.chunked:
            said = f"counted requests have {self.emitted} tokens after their first, chunks {self.chunked}"
            raise Breach(TOKENS, said)
        if scenario.engine.num_speculative_tokens:
            rounds = np.array(rounds_by_accepted)
            self._check_rounds(int(rounds.sum()), int(rounds @ np.arange(len(rounds))))
        replicas, seats = scenario.deployment.replicas, scenario.engine.max_num_seqs
        span_s = replicas * (self.end_s - self.start_s) if self.busy_s else 0.0
        for what, used, there in (
            ("iterations take", self.busy_s, span_s),
            ("sequences run", self.running_s, span_s * seats),
        ):
            if used > there * (1.0 + ROUNDING):
                raise Breach(BUSY, f"{what} {used:.9g} s of {there:.9g} s")
        self.check_little(scenario.engine)

    def _check_rounds(self, verifications: int, accepted: int) -> None:
        """Verifications and accepted drafts of counted requests are those of the histogram."""
        for what, mine, found in (
            ("verifications", self.verifications, verifications),
            ("accepted drafts", self.accepted, accepted),
        ):
            if mine != found:
                raise Breach(TOKENS, f"counted requests have {mine} {what}, the histogram {found}")

    @property
    def rounding_s(self) -> float:
        """What rounding may do to sums of seconds: of the sums, and of the times that differences are of."""
        return ROUNDING * self.inside_s + CLOCK_ROUNDING * self.served * max(self.end_s, 0.0)

    def check_little(self, engine: EngineConfig) -> None:
        """Requests present, over time, are the requests' time inside: L = lambda W, as sums.

        A request is present from the turn that sees it on, at the latest when the step ends in which it
        arrived. An asynchronous engine decides a step while the one before runs: each request may be counted
        a step late or a step long; with a pipeline, as many steps as are under way.

        Raises:
            Breach: the sums differ by more than that.
        """
        missing = self.inside_s - self.present_s
        error = self.served * self.longest_s
        low, high = (-2.0 * error, 2.0 * error) if engine.async_scheduling else (0.0, error)
        if engine.pipeline_parallel_size > 1:
            high = (engine.pipeline_parallel_size + 1) * error
            low = -high
        if not low - self.rounding_s <= missing <= high + self.rounding_s:
            said = (
                f"requests were inside for {self.inside_s:.9g} s together, and present for "
                f"{self.present_s:.9g} s of the iterations; at most {error:.3g} s may be unseen"
            )
            raise Breach(LITTLE, said)


def check_run(result: RunResult, table: RequestTable) -> None:
    """Checks every law of a run that has ended.

    Args:
        result: the run.
        table: its requests.

    Raises:
        Breach: a law does not hold; names the law, the request and the time.
    """
    scenario, requests, rows = result.scenario, result.requests, result.iterations
    begun = served = check_requests(scenario.engine, requests)
    refused = len(requests["status"]) - len(served["status"])
    if refused and (scenario.engine.sglang is not None or "gave_up_s" in requests):
        given_up = aborted(requests)
        begun = {name: np.concatenate([served[name], given_up[name]]) for name in served}
    if result.attempts:
        begun = _attempts(begun, result.attempts)
        check_drafts(scenario.engine, begun)
    check_due(requests, table)
    StepLaws(scenario).check(rows, requests)
    check_in_flight(scenario, requests)
    _check_asked(scenario.engine, requests, table)
    check_emitted(scenario.engine, begun)
    _check_tokens(scenario.engine, begun, rows)
    totals = Totals(stages=scenario.engine.pipeline_parallel_size)
    totals.add_requests(begun, refused)
    totals.add_iterations(rows)
    totals.add_gaps(result.odd_gaps)
    totals.add_standing(result.standing)
    totals.check(scenario, result.refusals, result.rounds_by_accepted)
    if not scenario.engine.async_scheduling and totals.stages == 1:
        _check_little_exactly(totals, begun, rows, result.cuts, result.standing)


def _attempts(begun: Columns, attempts: Columns) -> Columns:
    """Returns those that were begun, one for each time that one was: where replicas fail, a request may be at
    several, and is a request of its own to each."""
    once = ~np.isin(begun["request_id"], attempts["request_id"])
    names = [name for name in attempts if name in begun]
    return {name: np.concatenate([begun[name][once], attempts[name]]) for name in names}


def _check_little_exactly(
    totals: Totals, served: Columns, rows: Columns, cuts: Columns, standing: Columns
) -> None:
    """Little's law of a synchronous engine, with what its sampling leaves out: a request is present from the
    start of the iteration that follows its arrival on. One that arrives at the very start of an iteration,
    as an answer to the one before may, can have missed it. A step that a failure cut short lasts no time
    here, and who arrived in it was never there. When a replica stands still it is seen who is there.
    """
    if standing:
        rows = {name: np.concatenate([rows[name], standing[name]]) for name, _ in _CUT}
        order = np.argsort(rows["start_s"], kind="stable")
        rows = {name: column[order] for name, column in rows.items()}
    if cuts:
        gone = (served["status"] == LOST) & (served["finished_s"] <= served["arrived_s"])
        served = {name: column[~gone] for name, column in served.items()}
        rows = {name: np.concatenate([rows[name], cuts[of]]) for name, of in _CUT}
        order = np.argsort(rows["start_s"], kind="stable")
        rows = {name: column[order] for name, column in rows.items()}
    unseen_s, missed_s, replicas = 0.0, 0.0, np.flatnonzero(np.bincount(rows["replica"]))
    for replica in replicas:
        starts, ends, arrived = rows["start_s"], rows["end_s"], served["arrived_s"]
        ended = served["finished_s"]
        if len(replicas) > 1:
            mine, here = rows["replica"] == replica, served["replica"] == replica
            starts, ends, arrived, ended = starts[mine], ends[mine], arrived[here], ended[here]
        for low in range(0, len(arrived), PORTION):
            some = arrived[low : low + PORTION]
            seen = np.searchsorted(starts, some)
            left = ended[low : low + PORTION]  # one that was given up may have left before a step saw it
            waits = np.minimum(starts[np.minimum(seen, len(starts) - 1)], left) - some
            waits = np.where(seen < len(starts), waits, left - some)
            unseen_s += float(waits.sum())
            tied = seen[(waits == 0.0) & (left > some)]
            missed_s += float((ends[tied] - starts[tied]).sum())
    found, there = totals.present_s + unseen_s, totals.inside_s
    if not found - totals.rounding_s <= there <= found + missed_s + totals.rounding_s:
        said = f"requests were inside for {there:.12g} s together, present or not yet seen for {found:.12g} s"
        raise Breach(LITTLE, said)


def _due_tokens(engine: EngineConfig, table: RequestTable) -> npt.NDArray[np.int64]:
    """Returns the tokens that each request is to emit: those it asks for. SGLang cuts them on arrival to what
    context and pool hold, and every prompt gives one."""
    if engine.sglang is None:
        return table.output_tokens
    most = SglangRules.of(engine).max_new_tokens_each(table.prompt_tokens, table.max_tokens)
    return np.maximum(np.minimum(table.output_tokens, most), 1)


def _check_asked(engine: EngineConfig, requests: Columns, table: RequestTable) -> None:
    """Each request emits the tokens that it was to emit; one that SGLang gives up is short of them. One that
    goes on after a failure may be cut by up to a page each time: SGLang counts its prompt, which what it has
    written is now part of, in whole pages (`SglangRules.max_new_tokens`)."""
    output, status, due = requests["output_tokens"], requests["status"], _due_tokens(engine, table)
    if output is not due:
        spare = 0 if engine.sglang is None else (engine.block_size - 1) * requests.get("retries", 0)
        wrong = (output > due) | (output < due - spare)
        wrong &= ~np.isin(status, (REJECTED, ABORTED, LOST, GAVE_UP))
        wrong |= ((output != 0) & np.isin(status, (REJECTED, LOST))) | ((output >= due) & (status == ABORTED))
        if wrong.any():
            at = first(wrong)
            raise request_breach(TOKENS, f"it emitted {output[at]} tokens, of {due[at]}", requests, at)


def check_due(requests: Columns, table: RequestTable) -> None:
    """No request is sent before it is due."""
    if requests["sent_s"] is not table.arrival_s:
        early = ~(requests["sent_s"] >= table.arrival_s)
        if early.any():
            at = first(early)
            said = f"sent at {requests['sent_s'][at]:.9g} s, due at {table.arrival_s[at]:.9g} s"
            raise request_breach(CAUSES, said, requests, at)
    if table.think_s is None:
        return
    later = np.flatnonzero(table.turn > 0)
    due_s = over_s(requests)[later - 1] + table.think_s[later]
    early = ~(requests["sent_s"][later] >= due_s)
    if early.any():
        at = int(later[first(early)])
        sent_s, due = requests["sent_s"][at], due_s[first(early)]
        said = f"sent at {sent_s:.9g} s, due at {due:.9g} s, behind the turn before it"
        raise request_breach(CAUSES, said, requests, at)


def _check_tokens(engine: EngineConfig, served: Columns, rows: Columns) -> None:
    """Tokens and chunks of requests are those of iterations, and every token but the last is computed once.

    More is computed for whoever was thrown out and comes back, and, in an asynchronous engine, in the step
    that a request needed no more. Less, where prompts are shared: who was thrown out in mid-prompt may find
    more of it on coming back, computed by others meanwhile, than the `cached_tokens` of its first admission.
    """
    for what in ("output_tokens", "chunks"):
        sums = int(served[what].sum()), int(rows[what].sum())
        if sums[0] != sums[1]:
            raise Breach(TOKENS, f"{what} of requests are {sums[0]}, of iterations {sums[1]}")
    drafts = int(rows["draft_tokens"].sum())
    if drafts < int(served["draft_tokens"].sum()):
        raise Breach(TOKENS, f"requests verified {int(served['draft_tokens'].sum())} drafts, steps {drafts}")
    computed = int(rows["tokens"].sum()) - drafts
    gone = served["status"] == GAVE_UP
    begun = ((served["status"] == LOST) | gone) & (served["chunks"] == 0)  # its prompt may not be done
    prompts = int((served["prompt_tokens"][begun] - served["cached_tokens"][begun] - 1).sum())
    needed = int(served["prompt_tokens"].sum()) - int(served["cached_tokens"].sum())
    needed += int(served["chunks"].sum()) - len(served["status"])
    wasted = len(served["status"]) if engine.async_scheduling else 0
    wasted += (1 + engine.pipeline_parallel_size) * int(gone.sum())  # steps under way for who was aborted
    found = 0
    if engine.enable_prefix_caching:
        found = int((served["prompt_tokens"] - served["cached_tokens"])[served["preemptions"] > 0].sum())
    if computed < needed - prompts - found or (
        computed > needed + wasted and not served["preemptions"].any()
    ):
        raise Breach(TOKENS, f"iterations computed {computed} tokens beside drafts, {needed} were needed")


def check_in_flight(scenario: Scenario, requests: Columns) -> None:
    """The n-th request is sent when n - max_concurrency have been answered, or later."""
    limit = scenario.load.max_concurrency
    sent: npt.NDArray[np.float64] = requests["sent_s"]
    if limit is None or limit >= len(sent):
        return
    order = None
    if not (sent[1:] >= sent[:-1]).all():  # turns of sessions are not sent in the order of their rows
        order = np.argsort(sent, kind="stable")
    later = sent[limit:] if order is None else sent[order[limit:]]
    early = later < np.sort(over_s(requests))[: len(sent) - limit]
    if early.any():
        at = limit + first(early)
        at = at if order is None else int(order[at])
        raise request_breach(IN_FLIGHT, f"sent at {sent[at]:.9g} s beside {limit} others", requests, at)
