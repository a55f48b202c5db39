"""A step as a policy sees it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.rows.lives import RowRequest
from specfleet.sim.calendar.rows.table import RowTable
from specfleet.sim.sequence import Batch, Sequence
from specfleet.sim.step import Step


class SeenRequest(Sequence):
    """A request as a policy may see it, made when it is first asked about."""

    __slots__ = ("confidence", "temperature", "traffic_class")

    @classmethod
    def of(cls, row: RowRequest, run: CalendarRun) -> SeenRequest:
        """Returns a request with what its drafter expects, its temperature and its class."""
        table = run.table
        made = cls(row.id, row.prompt_tokens, row.max_tokens)
        made.temperature = float(table.temperature[row.id])
        made.traffic_class = table.class_names[int(table.class_id[row.id])]
        assert run.lives is not None
        made.confidence = run.lives.confidence(row.id)
        return made

    temperature: float
    traffic_class: str
    confidence: tuple[float, ...]


class RowBatch(Batch):
    """A step for a policy: rows that decode, rows whose prompts end in it, and one whose prompt does not.

    Args:
        run: of the requests.
        table: who decodes. sits: where the rows stand there. drafts: of those that decode.
        step: what it gives to prompts. begun: whose prompt is computed in it, and not to its end.
    """

    __slots__ = ("_drafts", "_ids", "_run", "_step", "_table", "begun", "decodes", "sits", "total")

    def __init__(
        self,
        run: CalendarRun,
        table: RowTable,
        sits: I64 | slice,
        drafts: I64,
        step: Step,
        begun: RowRequest | None,
    ) -> None:
        self._run, self._table, self._step = run, table, step
        self.sits, self.decodes, self.begun = sits, len(drafts), begun
        self._ids = self._with_begun(table.ids[sits].copy(), begun.id if begun is not None else 0)
        self.total = len(self._ids)
        self._drafts = np.zeros(self.total, dtype=np.int64)
        self._drafts[: len(drafts)] = drafts
        self.prompts = step.pieces > 0
        self.head = None

    def _with_begun(self, values: I64, of_begun: int) -> I64:
        return values if self.begun is None else np.append(values, of_begun)

    def drop(self, row: int) -> None:
        """Lets the row go of who has ended before it was told of."""
        self._ids, self._drafts = np.delete(self._ids, row), np.delete(self._drafts, row)

    @property
    def rows(self) -> int:
        """As `Batch.rows`: with those whose row is in vain."""
        return self.total

    @property
    def places(self) -> int:
        """Rows that are told of."""
        return len(self._ids)

    def member(self, row: int) -> Sequence:
        """As `Batch.member`; asked when the step is decided."""
        members, places = self._table.members, np.arange(self._table.n)[self.sits]
        found = members[places.item(row)] if row < len(places) else self.begun
        assert found is not None
        return SeenRequest.of(found, self._run)

    def ids(self) -> I64:
        """As `Batch.ids`."""
        return self._ids

    def drafts(self) -> I64:
        """As `Batch.drafts`."""
        return self._drafts

    def voids(self) -> npt.NDArray[np.bool_]:
        """As `Batch.voids`: none here."""
        return np.zeros(len(self._ids), dtype=np.bool_)

    def written(self) -> I64:
        """As `Batch.written`; asked when the step is decided."""
        begun = self.begun
        known = 0 if begun is None else begun.num_output_tokens
        return self._with_begun(self._table.written[self.sits], known)

    def assumed(self) -> I64:
        """As `Batch.assumed`; asked when the step is decided."""
        return self.written() + self._with_begun(self._table.assumed[self.sits], 0)

    def will_sample(self) -> npt.NDArray[np.bool_]:
        """As `Batch.will_sample`."""
        samples = np.ones(len(self._ids), dtype=np.bool_)
        if self.begun is not None:
            samples[-1] = False
        return samples

    def kv_tokens(self) -> int:
        """As `Batch.kv_tokens`; asked when the step is decided."""
        table, decodes = self._table, self.decodes
        which = slice(decodes) if isinstance(self.sits, slice) else self.sits[:decodes]
        return int(table.context[which].sum() + table.assumed[which].sum()) + self._step.past
