"""The acceptance of each request of a run: its class's process, at its own prompt, temperature and rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from specfleet.sim.speculation.acceptance import Acceptance, Chain
from specfleet.sim.speculation.joint import Rank, output_ranks
from specfleet.sim.speculation.processes import process
from specfleet.sim.speculation.spec import AcceptanceSpec
from specfleet.sim.speculation.together import accepted_each, proposals_each
from specfleet.workloads.requests import RequestTable

TOGETHER, MOST_KEPT = 64, 1 << 12
"""Requests whose luck is drawn at once, and kept at most."""


class Lives:
    """Draws requests' luck for life, row by row.

    Args:
        specs: by traffic class name; `""` serves classes not named.
        table: the requests.
        k: drafts a round, at least 1.
        seed: of the luck.

    Attributes:
        by_class: process of each specification.
    """

    def __init__(self, specs: Mapping[str, AcceptanceSpec], table: RequestTable, k: int, seed: int) -> None:
        self._table = table
        self._ids = table.luck_ids
        self._names = [name if name in specs else "" for name in table.class_names]
        self.by_class: dict[str, Acceptance] = {}
        self._accepted_of: dict[int, bytes] = {}
        self._found_by: dict[int, bytes] = {}
        self._ranks = np.zeros((len(table), 2))
        for name, spec in specs.items():
            served = [i for i, used in enumerate(self._names) if used == name]
            rows = np.flatnonzero(np.isin(table.class_id, served))
            outputs = table.output_tokens[rows]
            if spec.length_rank_correlation and not len(rows):
                continue
            self.by_class[name] = process(spec, k, seed, outputs)
            self.by_class[name].turns = None if table.think_s is None else table.turn
            if spec.length_rank_correlation:
                self._ranks[rows] = output_ranks(outputs)
        self._processes = {i: self.by_class[n] for i, n in enumerate(self._names) if n in self.by_class}

    def process(self, row: int) -> Acceptance:
        """Returns the process of a request's class."""
        return self._processes[self._table.class_id.item(row)]

    def accepted(self, row: int, ahead: bool = False) -> bytes:
        """Returns the drafts accepted by verification, or by output tokens written where luck has a place.

        Args:
            row: of the table.
            ahead: steps are scheduled before it is known whether a look-up finds drafts (asynchronous
                engines): each verifies K, and of a look-up that finds none, none is accepted.
        """
        drawing = self.process(row)
        accepted = self._accepted(drawing, row)
        found = self.proposals(row) if ahead else None
        if found is None:
            return accepted
        if drawing.by_output_position:
            return bytes(n if hit else 0 for n, hit in zip(accepted, found, strict=False))
        verified = np.zeros(len(found), dtype=np.uint8)
        hits = np.flatnonzero(np.frombuffer(found, dtype=np.uint8))
        rounds = np.frombuffer(accepted, dtype=np.uint8)[: len(hits)]
        verified[hits[: len(rounds)]] = rounds
        return verified.tobytes()

    def foresee(self, row: int) -> None:
        """Draws the luck of a row and of those behind it together, to be asked for soon.

        For processes whose rounds are drawn against thresholds; a request alone costs five times as much.
        """
        drawing = self.process(row)
        if type(drawing) is not Acceptance or row in self._accepted_of:
            return
        if len(self._accepted_of) >= MOST_KEPT:
            self._accepted_of.clear()
            self._found_by.clear()
        table = self._table
        end = min(row + TOGETHER, len(table))
        mine = [self.process(other) is drawing for other in range(row, end)]
        rows = np.arange(row, end)[mine]
        outputs = np.asarray(table.output_tokens[rows], dtype=np.int64)
        ids = self._ids[rows]
        thresholds = drawing.thresholds_each(ids)
        if thresholds is None:
            thresholds = np.array([self.bounds(other) for other in rows.tolist()])
        drawn = accepted_each(drawing.seed, ids, outputs, thresholds)
        self._accepted_of.update(zip(rows.tolist(), drawn, strict=True))
        if (found := proposals_each(drawing, ids, outputs)) is not None:
            self._found_by.update(zip(rows.tolist(), found, strict=True))

    def _accepted(self, drawing: Acceptance, row: int) -> bytes:
        table = self._table
        output = int(table.output_tokens[row])
        if drawing.by_output_position:
            return drawing.at_positions(self._id(row), output)[0]
        if row in self._accepted_of:
            return self._accepted_of[row]
        prompt, temperature = int(table.prompt_tokens[row]), float(table.temperature[row])
        return drawing.accepted(self._id(row), prompt, output, temperature, self._rank(row))

    def bounds(self, row: int) -> npt.NDArray[Any]:
        """Returns what a request's rounds are drawn against, as `Acceptance.bounds`."""
        prompt, temperature = int(self._table.prompt_tokens[row]), float(self._table.temperature[row])
        return self.process(row).bounds(self._id(row), prompt, temperature, self._rank(row))

    def proposals(self, row: int) -> bytes | None:
        """Returns which samplings find drafts, by sampling or by output tokens written; None: all."""
        drawing, output = self.process(row), int(self._table.output_tokens[row])
        if drawing.by_output_position:
            return drawing.at_positions(self._id(row), output)[1]
        if row in self._found_by:
            return self._found_by[row]
        return drawing.proposals(self._id(row), output, self._rank(row))

    def chain(self, row: int) -> Chain:
        """Returns when a request's samplings find drafts; only where not all of them do."""
        drawing = self.process(row)
        chain = drawing.chain(drawing.level(self._id(row), self._rank(row)))
        assert chain is not None
        return chain

    def confidence(self, row: int) -> tuple[float, ...]:
        """Returns the survival by position that a calibrated drafter expects of its drafts."""
        prompt, temperature = int(self._table.prompt_tokens[row]), float(self._table.temperature[row])
        return self.process(row).confidence(self._id(row), prompt, temperature, self._rank(row))

    def _id(self, row: int) -> int:
        """Returns the key of a request's luck."""
        return int(self._ids[row])

    def _rank(self, row: int) -> Rank:
        low, high = self._ranks[row].tolist()
        return low, high
