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
    """A request as a policy may see it: as it was sent, and what its drafter expects.

    Args:
        row: the request. run: it belongs to.
    """

    __slots__ = ("_run",)

    def __init__(self, row: RowRequest, run: CalendarRun) -> None:
        self._run = run
        self.id, self.prompt_tokens, self.max_tokens = row.id, row.prompt_tokens, row.max_tokens
        self.priority = row.priority

    @property
    def temperature(self) -> float:
        """Of its sampling."""
        return float(self._run.table.temperature[self.id])

    @property
    def traffic_class(self) -> str:
        """Its class's name."""
        table = self._run.table
        return table.class_names[int(table.class_id[self.id])]

    @property
    def confidence(self) -> tuple[float, ...]:
        """Survival by position that its drafter expects of its own drafts."""
        assert self._run.lives is not None
        return self._run.lives.confidence(self.id)


class RowBatch(Batch):
    """A step for a policy: rows that decode, rows whose prompts end in it, and one whose prompt does not.

    Args:
        run: of the requests.
        table: who decodes. sits: where the rows stand there. drafts: of those that decode.
        step: what it gives to prompts. begun: whose prompt is computed in it, and not to its end.
    """

    __slots__ = ("_drafts", "_ids", "_now", "_run", "_step", "_table", "begun", "decodes", "sits", "total")

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
        self.total = (sits.stop if isinstance(sits, slice) else len(sits)) + (begun is not None)
        self.prompts = step.pieces > 0
        self.head = None
        self._now = drafts
        self._ids: I64 | None = None
        self._drafts: I64 | None = None

    def noted(self) -> RowBatch:
        """Returns the step with what has to be known of it when it has ended."""
        self.ids(), self.drafts()
        return self

    def _with_begun(self, values: I64, of_begun: int) -> I64:
        return values if self.begun is None else np.append(values, of_begun)

    def drop(self, row: int) -> None:
        """Lets the row go of who has ended before it was told of."""
        self._ids, self._drafts = np.delete(self.ids(), row), np.delete(self.drafts(), row)

    @property
    def rows(self) -> int:
        """As `Batch.rows`: with those whose row is in vain."""
        return self.total

    @property
    def places(self) -> int:
        """Rows that are told of."""
        return len(self.ids())

    def member(self, row: int) -> Sequence:
        """As `Batch.member`; asked when the step is decided."""
        sits, found = self.sits, self.begun
        if found is None or row < self.total - 1:
            found = self._table.members[row if isinstance(sits, slice) else sits.item(row)]
        return SeenRequest(found, self._run)

    def ids(self) -> I64:
        """As `Batch.ids`; first asked when the step is decided."""
        if self._ids is None:
            own = self._table.ids[self.sits].copy()
            self._ids = own if self.begun is None else np.append(own, self.begun.id)
        return self._ids

    def drafts(self) -> I64:
        """As `Batch.drafts`; first asked when the step is decided."""
        if self._drafts is None:
            self._drafts = np.zeros(self.total, dtype=np.int64)
            self._drafts[: self.decodes] = self._now
        return self._drafts

    def voids(self) -> npt.NDArray[np.bool_]:
        """As `Batch.voids`: none here."""
        return np.zeros(len(self.ids()), dtype=np.bool_)

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
        samples = np.ones(len(self.ids()), dtype=np.bool_)
        if self.begun is not None:
            samples[-1] = False
        return samples

    def kv_tokens(self) -> int:
        """As `Batch.kv_tokens`; asked when the step is decided."""
        table, decodes = self._table, self.decodes
        which = slice(decodes) if isinstance(self.sits, slice) else self.sits[:decodes]
        return int(table.context[which].sum() + table.assumed[which].sum()) + self._step.past
