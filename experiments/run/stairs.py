"""The target's pass by its rows: the stairs of kernels and CUDA graphs, and where each K stands on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specfleet.experiments.run.explain import Explanation, decode_shape, passes_of, price, with_drafts
from specfleet.hardware.costmodels import COST_MODELS

PASS = ("weights", "compute", "communication", "launch")
"""Terms of the target's pass that go with its rows; attention, host and drafter do not."""
FURTHER_DRAFTS = 3
LEAST_DRAFTS = 5
ABOVE = 1.02
"""A step up from one row to the next by more than this is a stair."""


@dataclass(frozen=True)
class Stairs:
    """The target's pass over rows.

    Attributes:
        rows: row counts, growing by one.
        pass_ms: milliseconds of the pass for each, padding included.
        drafts: (K, rows, milliseconds) of a batch in which everybody verifies K drafts.
    """

    rows: tuple[int, ...]
    pass_ms: tuple[float, ...]
    drafts: tuple[tuple[int, int, float], ...]

    @property
    def edges(self) -> tuple[int, ...]:
        """Last row counts below a stair."""
        pairs = zip(self.rows, self.pass_ms, self.pass_ms[1:], strict=False)
        return tuple(row for row, here, above in pairs if above > ABOVE * here)

    @property
    def own_graphs(self) -> bool:
        """Whether some K has other CUDA graphs than the line, so that its point lies beside it."""
        line = dict(zip(self.rows, self.pass_ms, strict=True))
        return any(abs(ms / line[rows] - 1.0) > ABOVE - 1.0 for _, rows, ms in self.drafts)


def stairs(said: Explanation) -> Stairs:
    """Returns the stairs around an explained step, up to three drafts more than it has."""
    place, batch = said.place, said.batch
    room = place.max_num_batched_tokens // batch - 1
    most = min(max(place.num_speculative_tokens + FURTHER_DRAFTS, LEAST_DRAFTS), room)
    rows = np.arange(batch, batch * (1 + most) + 1, dtype=np.int64)
    shape = decode_shape(batch, said.context, 0, passes_of(place))._asdict()
    columns = {name: np.full(len(rows), value, dtype=np.int64) for name, value in shape.items()}
    columns |= {"tokens": rows, "logit_rows": rows, "draft_tokens": rows - batch}
    terms = COST_MODELS[said.cost_model](place).terms(columns)
    pass_ms = 1e3 * np.sum([terms[name] for name in PASS], axis=0)
    chosen = range(most + 1) if place.drafter is not None else (0,)
    steps = [price(with_drafts(place, k), said.cost_model, batch, said.context) for k in chosen]
    drafts = [(s.k, s.shape.tokens, sum(s.terms_ms[name] for name in PASS)) for s in steps]
    return Stairs(tuple(rows.tolist()), tuple(pass_ms.tolist()), tuple(drafts))
