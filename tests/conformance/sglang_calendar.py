"""Replays recorded decisions of the real SGLang scheduler through the calendar, turn by turn.

A lane decides each turn from its running sums; who that is in single is read off the lives it holds. `full`,
what is processed and what single requests hold have no place there and are not compared. A lane that counts
KV alone is replayed up to the first retraction, and only where no prompt is shared; one with the radix tree
to the end.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from calendar_engine import NotTaken
from records import Differences, Step, Trace, differences
from sglang_replay import sglang_config

from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.sglang.asking import Asking, Followed
from specfleet.sim.calendar.sglang.counted import CountedLane
from specfleet.sim.calendar.sglang.kv import Count, Shared
from specfleet.sim.calendar.sglang.lane import SglangLane
from specfleet.sim.calendar.sglang.line import AsTheyCame, Sorted
from specfleet.sim.calendar.sglang.lives import SglangPacking, SglangTrajectories
from specfleet.sim.calendar.sglang.runs import outputs_cut
from specfleet.sim.config import EngineConfig
from specfleet.sim.errors import Unsuited
from specfleet.sim.sequence import NEVER, stretches_of
from specfleet.sim.sglang.adder import PrefillRow
from specfleet.sim.sglang.rules import NewTokenRatio, SglangRules
from specfleet.workloads.requests import RequestTable

FIELDS = ("mode", "rows", "tokens", "kv", "retracted", "preempted", "ntr", "chunked", "running", "waiting")
IN_TREE = ("free_end", "evictable_end")
"""What a lane with the radix tree knows besides."""


class Scripted:
    """The scripted answers, as luck drawn for many at once.

    Args:
        accept: drafts accepted by verification, by place.
        depth: of the drafts.
    """

    def __init__(self, accept: list[list[int]], depth: int) -> None:
        self.accept, self.depth = accept, depth

    def rounds_to_draw(self, ids: I64, wanted: I64) -> I64:
        """As `Luck.rounds_to_draw`: always enough."""
        return wanted

    def gains(self, ids: I64, hashes: I64, skipped: I64 | None = None) -> npt.NDArray[np.uint8]:
        """As `Luck.gains`."""
        drawn = []
        for place, count in zip(ids.tolist(), (2 * hashes).tolist(), strict=True):
            script = self.accept[place]
            drawn += [1 + min(script[turn % len(script)], self.depth) for turn in range(count)]
        return np.array(drawn, dtype=np.uint8)


class Watched(SglangLane):
    """A lane that keeps the rows of its last prefill batch: place, tokens computed before and in it."""

    pieces: list[tuple[int, int, int]]

    def _compute(self, pieces: list[PrefillRow[Asking]], running: int) -> tuple[int, ...]:
        self.pieces = [(one.place, start, tokens) for one, start, tokens, _, _ in pieces]
        return super()._compute(pieces, running)


class WatchedCount(CountedLane):
    """The same of one that counts KV alone."""

    pieces: list[tuple[int, int, int]]

    def _take(self, counts: list[int], cut: bool, running: int) -> tuple[int, ...]:
        begun = [] if self.cut is None else [(self.cut.place, self.cut.start)]
        new = [(place, 0) for place in self.waiting.inbox[self.waiting.head :]]
        self.pieces = [(*who, count) for who, count in zip(begun + new, counts, strict=False)]
        return super()._take(counts, cut, running)


class Recorded(Sorted):
    """The queue of a recording, with the content that it gives.

    Args:
        trace: that.
    """

    def __init__(self, trace: Trace, lives: SglangTrajectories, config: EngineConfig, kv: Shared) -> None:
        assert config.sglang is not None
        super().__init__(array("q"), array("d"), lives, None, config.sglang, kv)  # type: ignore[arg-type]
        self.requests = trace["requests"]

    def _told(self, place: int) -> Followed:
        request = self.requests[place]
        return Followed(
            place,
            *self.lives.asked(place),
            bool(request.get("ignore_eos")),
            request.get("stop_at") or NEVER,
            stretches_of(tuple((stream, n) for stream, n in request["prompt"]), f"{request['id']}/out"),
            request.get("priority") or 0,
        )


def _not_taken(trace: Trace) -> str:
    """Returns why the calendar leaves a recording to stepping, or nothing."""
    config, requests = trace["config"], trace["requests"]
    if config["enable_mixed_chunk"]:
        return "mixed batches"
    if len({bool(request.get("ignore_eos")) for request in requests}) > 1:
        return "some requests ignore stop tokens"
    if any(request["prompt_len"] >= trace["derived"]["max_req_input_len"] for request in requests):
        return "a prompt is refused"
    return ""


def _shares(trace: Trace) -> bool:
    """Whether prompts share prefixes."""
    streams = [stream for request in trace["requests"] for stream, _ in request["prompt"]]
    return not trace["config"]["disable_radix_cache"] and len(set(streams)) < len(streams)


class CalendarReplay:
    """A lane in the event loop of the recording; `counts`: it counts KV alone."""

    def __init__(self, trace: Trace, counts: bool) -> None:
        if why := _not_taken(trace):
            raise NotTaken(why)
        config, requests = sglang_config(trace), trace["requests"]
        assert config.sglang is not None
        self.trace, self.rules = trace, SglangRules.of(config)
        packing = SglangPacking.of(self.rules, shares=True)
        assert packing is not None
        output = [request.get("stop_at") or request["output_len"] for request in requests]
        most = [request["output_len"] for request in requests]
        prompt = [request["prompt_len"] for request in requests]
        table = RequestTable.of(prompt, np.minimum(output, most).tolist(), max_tokens=most)
        luck = None
        if self.rules.num_speculative_tokens:
            accept = [request.get("accept") or [0] for request in requests]
            luck = Scripted(accept, trace["derived"]["max_accepted"] or 0)
        rows = np.arange(len(requests))
        cut = outputs_cut(table, self.rules)
        lives = SglangTrajectories(cut, rows, self.rules, packing, luck)  # type: ignore[arg-type]
        eos = bool(requests[0].get("ignore_eos"))
        ratio = NewTokenRatio.of(config.sglang.schedule_conservativeness)
        cost: Any = None
        self.lane: Watched | WatchedCount
        self.line: AsTheyCame | Recorded
        if counts:
            count = Count(self.rules, config.enable_prefix_caching)
            came = self.line = AsTheyCame(array("q"), array("d"), lives, eos)
            if count.tree is None and eos:
                self.lane = Watched(self.rules, ratio, cost, lives, came, count, eos, None, None, 0)
            else:
                self.lane = WatchedCount(self.rules, ratio, cost, lives, came, count, eos, None, 0)
        else:
            kv = Shared(self.rules, config.enable_prefix_caching, config.uses_eagle, packing)
            self.line = Recorded(trace, lives, config, kv)
            displaces = config.sglang if config.sglang.preempts else None
            self.lane = Watched(self.rules, ratio, cost, lives, self.line, kv, eos, displaces, None, 0)
        self.obstacle = ""

    def steps(self) -> Iterator[Step]:
        """Yields our record of each turn, up to one that the calendar leaves to stepping."""
        lane, arrivals = self.lane, sorted(enumerate(self.trace["requests"]), key=_arrival)
        flies = False
        for theirs in self.trace["steps"]:
            while arrivals and arrivals[0][1]["arrival_step"] <= theirs["step"]:
                self.line.submit(arrivals.pop(0)[0], 0.0)
                self.line.see(0.0)
            stood, decodes = [one for one, _ in lane.runs()], self._decode_rows()
            retracted = dict(lane.stays.retractions)
            try:
                shape = lane._prefill()
                prefills = shape is not None
                shape = shape or lane._decode()
            except Unsuited as why:
                self.obstacle = str(why)
                return
            turn: Step = {"step": theirs["step"], "mode": None, "rows": [], "tokens": 0}
            times = lane.stays.retractions
            out = [place for place in times if times[place] > retracted.get(place, 0)]
            waits = self._waiting()
            turn |= {"running": [], "retracted": [], "preempted": []}
            kind = "preempted" if shape is not None and prefills else "retracted"
            turn[kind] = sorted(map(self._id, out), key=waits.index)
            if out and not prefills:
                row_of = {one.place: row for one, row in zip(stood, decodes, strict=True)}
                decodes = [row_of[one.place] for one in lane.running if one.place not in out]
            if shape is not None:
                rows, running = decodes, [row[0] for row in decodes]
                if prefills:
                    rows = self._prefill_rows()
                    running = [self._id(one.place) for one in stood if one.place not in out]
                kv = (lane.pages - shape[10]) * self.rules.page
                turn |= {"mode": "prefill" if prefills else "decode", "rows": rows, "tokens": shape[0]}
                turn |= {"running": running, "kv": kv}
            else:
                turn["running"] = [self._id(one.place) for one in stood if not self._is_sure(one)]
            turn |= {"ntr": round(lane.ratio.now, 6), "waiting": waits}
            cut = lane.cut if isinstance(lane, WatchedCount) else lane.chunked
            turn["chunked"] = None if cut is None else self._id(cut.place)
            if shape is None and not flies:
                lane.ratio.reset()
            if shape is None:
                lane._learn()
            flies = shape is not None and lane.lag
            if lane.shared is not None:
                lane.shared.begin(lane.held)
                turn |= {"free_end": lane.shared.free, "evictable_end": lane.shared.evictable}
            yield turn

    def _id(self, place: int) -> int:
        number: int = self.trace["requests"][place]["id"]
        return number

    def _waiting(self) -> list[int]:
        return [self._id(one.place) for one in self.line.in_turn()]

    def _decode_rows(self) -> list[list[Any]]:
        """Returns the rows of a decode in this turn: those in vain are of requests that have ended."""
        lane, query, rows = self.lane, 1 + self.rules.num_speculative_tokens, list[list[Any]]()
        for one, _ in lane.runs():
            ends_now = one.last == lane.decodes - 1 and (lane.decode_flies or one.last < one.since)
            if one.last >= lane.decodes or (ends_now and not one.block.leave.sure[one.j]):
                done = min(lane.decodes - one.since, one.block.rounds[one.j])
                rows.append([self._id(one.place), "D", one.block.computed(one.j, done), query])
        return rows

    def _is_sure(self, one: Asking) -> bool:
        """Whether the result in flight is sure to end somebody."""
        return one.last < self.lane.decodes and bool(one.block.leave.sure[one.j])

    def _prefill_rows(self) -> list[list[Any]]:
        return [[self._id(place), "P", start, tokens] for place, start, tokens in self.lane.pieces]


def _arrival(one: tuple[int, dict[str, Any]]) -> tuple[int, int]:
    return one[1]["arrival_step"], one[1]["id"]


def compare(trace: Trace) -> tuple[Differences, str]:
    """Replays one trace through the calendar; returns what differs, and why it ended early if it did.

    Raises:
        NotTaken: the calendar leaves it to stepping.
    """
    steps = [step | {"kv": step["free"] + step["evictable"]} for step in trace["steps"]]
    for step in steps:
        if step["mode"] is None:
            del step["kv"]
    recorded = trace | {"steps": steps}
    replay = CalendarReplay(trace, counts=False)
    found = differences(recorded, replay.steps(), in_part=True, fields=(*FIELDS, *IN_TREE))
    if not _shares(trace) and not trace["config"]["enable_priority_scheduling"]:
        counted = CalendarReplay(trace, counts=True)
        found.lines += differences(recorded, counted.steps(), in_part=True, fields=FIELDS).lines
    return found, replay.obstacle
