"""Laws of single iterations, over whole columns or any portion of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from specfleet.hardware.leastwork import LeastWork
from specfleet.hardware.placement import Placement
from specfleet.sim.errors import Breach
from specfleet.sim.laws.names import BLOCKS, DATASHEET, LIMITS, ONE_BATCH, Mask, first
from specfleet.sim.recorder import Columns
from specfleet.sim.rules import SchedulerRules
from specfleet.sim.scenario import Scenario

ROUNDING = 1e-9
"""Relative error allowed of sums of times; a few 1e-13 are seen."""
CLOCK_ROUNDING = 1e-15
"""Of a time on the clock: some 4 units in the last place of a float."""


class PipelineOrder:
    """The order of one pipeline's batches.

    Args:
        stages: of the pipeline.
    """

    def __init__(self, stages: int) -> None:
        self._ends_s: deque[float] = deque([-inf] * stages, stages)
        self._start_s = -inf

    def breach(self, start_s: float, end_s: float) -> str | None:
        """Takes in the next batch; returns what is wrong with it, or None."""
        said = None
        if start_s < self._start_s or end_s < self._ends_s[-1]:
            said = f"it runs from {start_s:.9g} to {end_s:.9g} s, past the one before it"
        elif start_s < self._ends_s[0]:
            count = len(self._ends_s)
            said = f"it begins at {start_s:.9g} s, when {count} others are under way in {count} stages"
        self._start_s = start_s
        self._ends_s.append(end_s)
        return said


@dataclass
class StepLaws:
    """The laws of a scenario's iterations.

    Args:
        scenario: what is run.

    Attributes:
        last_end_s: end of the last iteration seen, by replica; -inf before the first.
    """

    scenario: Scenario

    def __post_init__(self) -> None:
        self.rules = SchedulerRules.of(self.scenario.engine)
        placement = getattr(self.scenario.cost, "placement", None)
        self.least = LeastWork(placement) if isinstance(placement, Placement) else None
        self.last_end_s = np.full(self.scenario.deployment.replicas, -inf)
        self.stages = self.scenario.engine.pipeline_parallel_size
        self._under_way = [PipelineOrder(self.stages) for _ in self.last_end_s] if self.stages > 1 else []

    def check(self, rows: Columns, requests: Columns | None = None) -> None:
        """Checks iterations (columns as `RunResult.iterations`), in order of time.

        Args:
            rows: a row an iteration, none of them seen before.
            requests: of all requests, to say whose step it was; None if they are not known.

        Raises:
            Breach: a law does not hold.
        """
        if len(rows["end_s"]):
            self._one_batch(rows, requests)
            self._limits(rows, requests)
            self._datasheet(rows, requests)

    def _one_batch(self, rows: Columns, requests: Columns | None) -> None:
        """The clock never goes back, and batches of a replica do not overlap."""
        start, end, replica = rows["start_s"], rows["end_s"], rows["replica"]
        good: Mask = start <= end
        if not good.all():
            raise self._breach(ONE_BATCH, "it ends before it begins", rows, first(~good), requests)
        if self.stages > 1:
            return self._in_order(rows, requests)
        if len(self.last_end_s) == 1:
            before = np.concatenate([self.last_end_s, end[:-1]])
        else:
            order = np.argsort(replica, kind="stable")
            mine, ends = replica[order], end[order]
            before, ours = np.empty(len(end)), np.empty(len(end))
            ours[1:] = np.where(mine[1:] == mine[:-1], ends[:-1], -inf)
            starts = np.flatnonzero(np.concatenate([[True], mine[1:] != mine[:-1]]))
            ours[starts] = self.last_end_s[mine[starts]]
            before[order] = ours
        good = start >= before
        if not good.all():
            at = first(~good)
            said = f"it begins at {start[at]:.9g} s, the one before it ends at {before[at]:.9g} s"
            raise self._breach(ONE_BATCH, said, rows, at, requests)
        self.last_end_s[replica[-1]] = end[-1]
        if len(self.last_end_s) > 1:
            np.maximum.at(self.last_end_s, replica, end)

    def _in_order(self, rows: Columns, requests: Columns | None) -> None:
        """Batches of a pipeline begin and end in order, and no more are under way than it has stages."""
        for at, place in enumerate(zip(rows["replica"], rows["start_s"], rows["end_s"], strict=True)):
            if said := self._under_way[place[0]].breach(float(place[1]), float(place[2])):
                raise self._breach(ONE_BATCH, said, rows, at, requests)

    def _limits(self, rows: Columns, requests: Columns | None) -> None:
        """Seats, tokens, drafts and blocks of every step."""
        rules, engine = self.rules, self.scenario.engine
        decodes, running, tokens = rows["decode_sequences"], rows["running"], rows["tokens"]
        scheduled = decodes + rows["prefill_sequences"]
        charged = tokens + rules.draft_slots * scheduled if rules.draft_slots else tokens
        if engine.sglang is not None:
            charged = np.zeros_like(tokens)  # it has a budget for prompts alone
        for law, what, value, limit in (
            (LIMITS, "sequences run", running, engine.max_num_seqs),
            (LIMITS, "tokens and draft slots", charged, engine.max_num_batched_tokens),
            (BLOCKS, "KV blocks are used", rows["kv_blocks_used"], engine.usable_blocks),
        ):
            if int(value.max()) > limit or int(value.min()) < 0:
                at = first((value > limit) | (value < 0))
                raise self._breach(law, f"{value[at]} {what}, of {limit}", rows, at, requests)
        k = engine.num_speculative_tokens
        pairs: list[tuple[str, npt.NDArray[np.integer], npt.NDArray[np.integer]]] = [
            ("sequences in the step, that run", scheduled, running),
            ("sampled rows, tokens", rows["logit_rows"], tokens),
        ]
        if k:
            pairs.append(("drafts, K for each that decodes", rows["draft_tokens"], decodes * k))
        if "chunks" in rows:
            pairs.append(("chunks, sequences in the step", rows["chunks"], scheduled))
            if rows["output_tokens"] is not rows["chunks"]:
                pairs.append(("tokens emitted, sampled rows", rows["output_tokens"], rows["logit_rows"]))
        for what, less, more in pairs:
            good: Mask = less <= more
            if not good.all():
                at = first(~good)
                raise self._breach(LIMITS, f"{what}: {less[at]}, {more[at]}", rows, at, requests)

    def _datasheet(self, rows: Columns, requests: Columns | None) -> None:
        """No step moves more bytes or computes more FLOP a second than its GPU can."""
        if self.least is None:
            return
        seconds = (rows["end_s"] - rows["start_s"]) * (1.0 + ROUNDING)
        seconds += CLOCK_ROUNDING * rows["end_s"]  # it is a difference of times
        for what, least in (("bytes/s", self.least.bytes_s(rows)), ("FLOP/s", self.least.flop_s(rows))):
            good: Mask = least <= seconds
            if not good.all():
                at = first(~good)
                taken = float(rows["end_s"][at] - rows["start_s"][at])
                said = (
                    f"{what}: at least {1e3 * least[at]:.6g} ms of work by the datasheet, in "
                    f"{1e3 * taken:.6g} ms{self._scaled()}"
                )
                raise self._breach(DATASHEET, said, rows, at, requests)

    def _scaled(self) -> str:
        """What may have made steps too fast."""
        profile = self.scenario.cost.placement.profile  # type: ignore[attr-defined] # there is least work
        scale = profile.kernel_time_scale
        return "" if scale >= 1.0 else f"; the engine profile takes {scale:g} of every kernel's time"

    def _breach(self, law: str, said: str, rows: Columns, at: int, requests: Columns | None) -> Breach:
        replica, end_s = int(rows["replica"][at]), float(rows["end_s"][at])
        who = None
        if requests is not None:
            index = int((rows["replica"][:at] == replica).sum())
            inside = (requests["first_iteration"] <= index) & (requests["last_iteration"] >= index)
            inside &= (requests["replica"] == replica) & np.isfinite(requests["finished_s"])
            who = int(requests["request_id"][first(inside)]) if inside.any() else None
        return Breach(law, said, who, end_s, replica)
