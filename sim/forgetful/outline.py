"""What has to be known of all requests before the first is run, where none is kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specfleet.sim.calendar.gate import RANKED, stranger, why_not
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.router import ROUTERS, Blind, Counting
from specfleet.sim.scenario import Scenario
from specfleet.sim.source import Source, some_rows
from specfleet.sim.speculation.lives import Lives
from specfleet.workloads.requests import RequestTable


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

    @property
    def counted(self) -> bool:
        """Whether the router counts who is inside, so that no replica is alone."""
        deployment = self.plan.scenario.deployment if self.plan is not None else None
        if deployment is None or deployment.replicas == 1:
            return False
        return not issubclass(ROUTERS[deployment.router], Blind)

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
    if scenario.engine.policy != "fcfs":
        return RANKED
    if scenario.load.max_concurrency is not None:
        return "max_concurrency: an answer lets the next request go"
    if scenario.load.patience:
        return "clients that give up"
    if deployment.replicas > 1 and not issubclass(ROUTERS[deployment.router], Blind | Counting):
        return f"the router {deployment.router} looks at more than the number of requests at replicas"
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
