"""An engine on the fast path that is fed with a recorded trace: its requests, its scripted luck, a price."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import numpy as np
import numpy.typing as npt
from records import Trace

from specfleet.hardware.kernels import Array
from specfleet.hardware.stepcost import StepShape
from specfleet.sim.calendar.fleet import Fleet
from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.gate import stranger, why_not
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.watch import Watch
from specfleet.sim.config import NO_CLIENT, EngineConfig
from specfleet.sim.rules import NEVER
from specfleet.sim.scenario import Scenario
from specfleet.sim.speculation.acceptance import Acceptance, AcceptanceSpec
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.step import Step
from specfleet.workloads.requests import RequestTable

STEP_S = 1.0
"""Every step takes a second: what happens by steps happens by the clock."""


class NotTaken(Exception):  # noqa: N818 - not an error: the trace is left to the crowd that is listed
    """A trace that the calendar does not take; the text says why."""


class Price:
    """A second a step, and a bell that rings whenever a step is priced."""

    def __init__(self) -> None:
        self.bell: Callable[[], None] = lambda: None

    def seconds(self, shape: StepShape) -> float:
        """Seconds of one step."""
        self.bell()
        return STEP_S

    def terms(self, columns: Mapping[str, npt.NDArray[np.int64]]) -> dict[str, Array]:
        """The same for many steps; without the bell."""
        return {"weights": np.full(len(columns["tokens"]), STEP_S)}

    def summary(self) -> str:
        """What is priced."""
        return "a second a step"


class Scripted(Acceptance):
    """Luck that is read from a script: `Scripts` answers for it."""

    independent_rounds = False


class Scripts(Lives):
    """The scripted answers of a trace's model runner, in the place of drawn luck.

    Args:
        requests: of the trace, in row order.
        k: drafts a round, at least 1.
    """

    def __init__(self, requests: list[dict[str, Any]], k: int) -> None:
        always = all(set(request.get("drafts") or [k]) == {k} for request in requests)
        spec = AcceptanceSpec(conditional_acceptance=0.5, proposal_probability=1.0 if always else 0.5)
        self.by_class = {"": Scripted(spec, k, 0)}
        self.by_class[""].by_output_position = not always  # steps of other scripts are not taken
        self._requests = requests

    def process(self, row: int) -> Acceptance:
        """Returns the process of everybody."""
        return self.by_class[""]

    def accepted(self, row: int, ahead: bool = False) -> bytes:
        """Returns the drafts accepted by verification, enough for all of a request's output."""
        request = self._requests[row]
        return bytes(islice(cycle(request.get("accept") or [0]), request["output_len"]))

    def proposals(self, row: int) -> bytes | None:
        """Every sampling proposes: other scripts are not taken."""
        return None


class Pieces(Step):
    """What a step gives to prompts, noted piece by piece.

    Attributes:
        noted: tokens, tokens computed before, and placeholder drafts of each, in order.
    """

    __slots__ = ("noted",)

    @classmethod
    def of(cls, lane: Lane) -> Pieces:
        """Lets a lane that has not begun note its pieces."""
        lane.crowd.step = pieces = cls(lane.crowd.rules, lane.crowd.footprints.window)
        return pieces

    @property
    def latest(self) -> list[tuple[int, int, int]]:
        """Those of the step that was decided last."""
        return self.noted if self.pieces else []

    def begin(self, tokens: int, seats: int, free_blocks: int, rows: int, cap: int = NEVER) -> None:
        """As in `Step`."""
        super().begin(tokens, seats, free_blocks, rows, cap)
        self.noted: list[tuple[int, int, int]] = []

    def _add(self, tokens: int, past: int, drafts: int) -> None:
        """As in `Step`."""
        super()._add(tokens, past, drafts)
        self.noted.append((tokens - drafts, past, drafts))


class Remembering(CalendarRun):
    """A run that may always run out of blocks, so that its engine remembers who runs."""

    def never_short(self, rules: Footprints) -> bool:
        """As in `CalendarRun`."""
        return False


class Recording:
    """The inputs of a trace as the fast path takes them.

    Args:
        trace: a parsed trace; only its inputs are used.
        config: of its engine.

    Attributes:
        requests: in the order in which they arrive; a request's row, and its place, is its index.
        lives: their luck; None without speculation.
    """

    def __init__(self, trace: Trace, config: EngineConfig) -> None:
        self.config = config
        self.requests = sorted(trace["requests"], key=lambda r: (r["arrival_step"], r["id"]))
        k = config.num_speculative_tokens
        self.lives = Scripts(self.requests, k) if k else None
        ended = {row: step["step"] for step in trace.get("steps", []) for row in step.get("finished", [])}
        for request in self.requests if config.enable_prefix_caching else ():
            for stream, _ in request["prompt"]:
                writer, _, kind = stream.partition("/")
                if kind == "out" and ended.get(int(writer), NEVER) >= request["arrival_step"]:
                    raise NotTaken("a prompt goes on from an output that is not written to its end")

    def table(self) -> RequestTable:
        """Returns the requests, all at 0: when each arrives is said later."""
        pieces = [piece for request in self.requests for piece in request["prompt"]]
        outputs = [request.get("output_stream", f"{request['id']}/out") for request in self.requests]
        names = dict.fromkeys([*(stream for stream, _ in pieces), *outputs])
        numbers = {stream: -1 - index for index, stream in enumerate(names)}
        offset = np.cumsum([0, *(len(request["prompt"]) for request in self.requests)])
        segments = (offset, [numbers[stream] for stream, _ in pieces], [count for _, count in pieces])
        stops = [request.get("stop_at") or request["output_len"] for request in self.requests]
        most = [request["output_len"] for request in self.requests]
        shared = len({stream for stream, _ in pieces}) < len(pieces)
        table = RequestTable.of(
            [request["prompt_len"] for request in self.requests],
            np.minimum(stops, most),
            max_tokens=most,
            segments=segments if shared else None,
        )
        return replace(table, output_stream=np.array([numbers[stream] for stream in outputs]))

    def scenario(self, price: Price) -> Scenario:
        """Returns the configuration."""
        specs = {} if self.lives is None else {"": self.lives.process(0).spec}
        return Scenario(self.config, price, specs, client=NO_CLIENT)

    def lane(self, price: Price, kind: type[CalendarRun] = Remembering) -> Lane:
        """Returns an engine without requests, which is told of each arrival.

        Args:
            price: of its steps.
            kind: the product's own, or one that remembers who runs.

        Raises:
            NotTaken: the fast path refuses the run.
        """
        scenario, table = self.scenario(price), self.table()
        run = kind(scenario, table, 0, self.lives)
        if refusals := run.refusals():
            raise NotTaken(f"refused by the engine: {'; '.join(refusals)}")
        if reason := stranger(scenario, table, None) or why_not(run):  # the luck is the script's
            raise NotTaken(reason)
        rules = run.rules()
        assert rules is not None, "counts that fit in one integer"
        return Fleet(run, rules, run.served).lane(array("q"), array("d"), 0, watch=Watch(ranks=False))
