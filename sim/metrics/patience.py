"""What clients that give up cost: requests without an answer, tokens and seats for nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from specfleet.sim.recorder import FINISHED, GAVE_UP, Columns
from specfleet.sim.scenario import RunResult


@dataclass(frozen=True)
class PatienceFigures:
    """Counted requests that their clients gave up, and what was done for them.

    Attributes:
        gave_up, gave_up_share: in the end; of all counted.
        gave_up_unanswered: of them, those whose last attempt had no token.
        client_retries: attempts after the first.
        mean_gave_up_ms: from the first send to giving up; None without any.
        wasted_tokens: output tokens thrown away: of attempts that were given up, or lost with a replica.
        wasted_seat_share: of the time that requests had a seat in an engine, the share of those attempts.
    """

    gave_up: int
    gave_up_share: float
    gave_up_unanswered: int
    client_retries: int
    mean_gave_up_ms: float | None
    wasted_tokens: int
    wasted_seat_share: float

    def as_dict(self) -> dict[str, object]:
        """Returns the figures by name."""
        return asdict(self)


def patience_figures(result: RunResult) -> PatienceFigures | None:
    """Returns what became of requests whose clients may give up; None where none may."""
    if not result.scenario.load.patience:
        return None
    requests = result.requests
    counted = requests["counted"] == 1
    gone = counted & (requests["status"] == GAVE_UP)
    waited_s = (requests["gave_up_s"] - requests["sent_s"])[gone]
    attempts = [part.attempts for part in (result.parts or (result,)) if part.attempts]
    again = np.concatenate([one["request_id"] for one in attempts]) if attempts else np.zeros(0, np.int64)
    once = counted & ~np.isin(requests["request_id"], again)
    ended = [{name: column[once] for name, column in requests.items()}]
    ended += [{name: one[name][one["counted"] == 1] for name in one} for one in attempts]
    wasted_s, useful_s = (sum(_seats_s(one, how) for one in ended) for how in (GAVE_UP, FINISHED))
    total = int(counted.sum())
    return PatienceFigures(
        gave_up=int(gone.sum()),
        gave_up_share=float(gone.sum() / total) if total else 0.0,
        gave_up_unanswered=int((gone & (requests["chunks"] == 0)).sum()),
        client_retries=int(requests["client_retries"][counted].sum()),
        mean_gave_up_ms=1e3 * float(waited_s.mean()) if len(waited_s) else None,
        wasted_tokens=int(requests["wasted_tokens"][counted].sum()),
        wasted_seat_share=wasted_s / (wasted_s + useful_s) if wasted_s else 0.0,
    )


def _seats_s(requests: Columns, status: int) -> float:
    """Returns the seconds from admission to the end, of those that ended so."""
    mine = requests["status"] == status
    return float(np.nansum((requests["finished_s"] - requests["admitted_s"])[mine]))
