"""Replays recorded decisions of the real SGLang scheduler through the calendar, turn by turn.

A lane decides each turn from its running sums; who that is in single is read off the lives it holds. `full`,
what is processed and what single requests hold have no place there and are not compared; free and evictable
KV are compared together.
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
from specfleet.sim.calendar.sglang.lane import Asking, SglangLane
from specfleet.sim.calendar.sglang.lives import SglangPacking, SglangTrajectories
from specfleet.sim.calendar.sglang.runs import outputs_cut
from specfleet.sim.calendar.waiting import WaitingLine
from specfleet.sim.errors import Unsuited
from specfleet.sim.sglang.adder import PrefillRow
from specfleet.sim.sglang.rules import NewTokenRatio, SglangRules
from specfleet.workloads.requests import RequestTable

FIELDS = ("mode", "rows", "tokens", "kv", "retracted", "preempted", "ntr", "chunked", "running", "waiting")


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

    def gains(self, ids: I64, hashes: I64) -> npt.NDArray[np.uint8]:
        """As `Luck.gains`."""
        drawn = []
        for place, count in zip(ids.tolist(), (2 * hashes).tolist(), strict=True):
            script = self.accept[place]
            drawn += [1 + min(script[turn % len(script)], self.depth) for turn in range(count)]
        return np.array(drawn, dtype=np.uint8)


class Watched(SglangLane):
    """A lane that keeps the rows of its last prefill batch."""

    pieces: list[PrefillRow[Asking]]

    def _compute(
        self, pieces: list[PrefillRow[Asking]], begun: Asking | None, running: int
    ) -> tuple[int, ...]:
        self.pieces = pieces
        return super()._compute(pieces, begun, running)


def _not_taken(trace: Trace) -> str:
    """Returns why the calendar leaves a recording to stepping, or nothing."""
    config, requests = trace["config"], trace["requests"]
    if config["enable_mixed_chunk"]:
        return "mixed batches"
    if config["enable_priority_scheduling"]:
        return "priorities"
    if len({bool(request.get("ignore_eos")) for request in requests}) > 1:
        return "some requests ignore stop tokens"
    if any(request["prompt_len"] >= trace["derived"]["max_req_input_len"] for request in requests):
        return "a prompt is refused"
    streams = [stream for request in requests for stream, _ in request["prompt"]]
    if not config["disable_radix_cache"] and len(set(streams)) < len(streams):
        return "prompts share prefixes"
    return ""


class CalendarReplay:
    """A lane in the event loop of the recording; arguments as `SglangReplay`."""

    def __init__(self, trace: Trace) -> None:
        if why := _not_taken(trace):
            raise NotTaken(why)
        config, requests = sglang_config(trace), trace["requests"]
        assert config.sglang is not None
        self.trace, self.rules = trace, SglangRules.of(config)
        packing = SglangPacking.of(self.rules)
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
        self.lane = Watched(
            self.rules,
            NewTokenRatio.of(config.sglang.schedule_conservativeness),
            None,  # type: ignore[arg-type]
            lives,
            WaitingLine(array("q"), array("d")),
            config.enable_prefix_caching,
            bool(requests[0].get("ignore_eos")),
            None,
            0,
        )
        self.obstacle = ""

    def steps(self) -> Iterator[Step]:
        """Yields our record of each turn, up to one that the calendar leaves to stepping."""
        lane, arrivals = self.lane, sorted(enumerate(self.trace["requests"]), key=_arrival)
        flies = False
        for theirs in self.trace["steps"]:
            while arrivals and arrivals[0][1]["arrival_step"] <= theirs["step"]:
                lane.waiting.submit(arrivals.pop(0)[0], 0.0)
                lane.waiting.visible += 1
            stood, decodes = self._stand(), self._decode_rows()
            try:
                shape = lane._prefill()
                prefills = shape is not None
                shape = shape or lane._decode()
            except Unsuited as why:
                self.obstacle = str(why)
                return
            turn: Step = {"step": theirs["step"], "mode": None, "rows": [], "tokens": 0}
            turn |= {"running": [], "retracted": [], "preempted": []}
            if shape is not None:
                rows, running = decodes, [row[0] for row in decodes]
                if prefills:
                    rows, running = self._prefill_rows(), stood
                kv = (lane.pages - shape[10]) * self.rules.page
                turn |= {"mode": "prefill" if prefills else "decode", "rows": rows, "tokens": shape[0]}
                turn |= {"running": running, "kv": kv}
            turn |= {"ntr": round(lane.ratio.now, 6), "waiting": self._waiting()}
            turn["chunked"] = None if lane.chunked is None else self._id(lane.chunked.place)
            if shape is None and not flies:
                lane.ratio.reset()
            if shape is None:
                lane._learn()
            flies = shape is not None and lane.lag
            yield turn

    def _id(self, place: int) -> int:
        number: int = self.trace["requests"][place]["id"]
        return number

    def _waiting(self) -> list[int]:
        waiting = self.lane.waiting
        return [self._id(place) for place in waiting.inbox[waiting.head : waiting.visible]]

    def _stand(self) -> list[int]:
        """Returns who is on the running list when a turn begins."""
        lane, fresh = self.lane, [one.place for one in self.lane.prefilled.members]
        seen = lane.decodes - lane.decode_flies
        old = [block.first_place + j for last, _, block, j in lane._running if last >= seen]
        return [self._id(place) for place in [p for p in old if p not in fresh] + fresh]

    def _decode_rows(self) -> list[list[Any]]:
        """Returns the rows of a decode in this turn: those in vain are of requests that have ended."""
        lane, query, rows = self.lane, 1 + self.rules.num_speculative_tokens, list[list[Any]]()
        places = [(last, since, block, j) for last, since, block, j in lane._running]
        places += [
            (lane.decodes - 1, lane.decodes, one.block, one.j)
            for one in lane.prefilled.members
            if not one.block.rounds[one.j]
        ]
        for last, since, block, j in sorted(places, key=lambda one: one[2].first_place + one[3]):
            ends_now = last == lane.decodes - 1 and (lane.decode_flies or not block.rounds[j])
            if last >= lane.decodes or (ends_now and not block.leave.sure[j]):
                at = block.start[j] + min(lane.decodes - since, block.rounds[j])
                rows.append([self._id(block.first_place + j), "D", int(block.context[at]) - query, query])
        return rows

    def _prefill_rows(self) -> list[list[Any]]:
        return [[self._id(one.place), "P", start, tokens] for one, start, tokens, _, _ in self.lane.pieces]


def _arrival(one: tuple[int, dict[str, Any]]) -> tuple[int, int]:
    return one[1]["arrival_step"], one[1]["id"]


def compare(trace: Trace) -> tuple[Differences, str]:
    """Replays one trace through the calendar; returns what differs, and why it ended early if it did.

    Raises:
        NotTaken: the calendar leaves it to stepping.
    """
    replay = CalendarReplay(trace)
    steps = [step | {"kv": step["free"] + step["evictable"]} for step in trace["steps"]]
    for step in steps:
        if step["mode"] is None:
            del step["kv"]
    found = differences(trace | {"steps": steps}, replay.steps(), in_part=True, fields=FIELDS)
    return found, replay.obstacle
