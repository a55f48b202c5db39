"""Requests that their clients gave up: what each attempt was, and what became of the request in the end."""

from __future__ import annotations

from math import nan

import numpy as np

from specfleet.sim.attempts import ATTEMPT_COUNTS, ATTEMPT_TIMES, SUMMED
from specfleet.sim.clients import Client
from specfleet.sim.recorder import FINISHED, GAVE_UP, REJECTED, Columns, Recorder
from specfleet.sim.requests import Request
from specfleet.workloads.requests import RequestTable

Sums = dict[int, dict[str, int]]


def nothing_summed() -> dict[str, int]:
    """Returns what the attempts of a request before its last have come to before there is one."""
    return dict.fromkeys((*SUMMED, "wasted"), 0)


class Tries:
    """Attempts of requests whose clients sent them again.

    Args:
        recorder: gets the row of every request; the last attempt's is the request's.
        table: of all requests.
        num_warmups: the first ones, which are not counted.
        sums: what the attempts before the last came to, by request; of several pools the same.
    """

    def __init__(self, recorder: Recorder, table: RequestTable, num_warmups: int, sums: Sums) -> None:
        self._recorder, self._table, self._num_warmups = recorder, table, num_warmups
        self._sums = sums
        self._rows: list[dict[str, float]] = []

    def note(self, request: Request, replica: int, now: float) -> None:
        """Notes an attempt that an engine has let go, since it is sent again."""
        self.add(
            {
                "arrived_s": request.arrived_s,
                "admitted_s": request.admitted_s if request.admitted_s <= now else nan,
                "first_token_s": request.first_token_s if request.chunks else nan,
                "finished_s": now,
                "request_id": request.id,
                "replica": replica,
                "prompt_tokens": request.prompt_tokens,
                "output_tokens": request.num_output_tokens,
                "cached_tokens": request.cached_tokens,
                "chunks": request.chunks,
                "first_iteration": request.first_iteration,
                "last_iteration": request.last_iteration,
                "verifications": request.verifications,
                "draft_tokens": request.draft_tokens,
                "accepted_tokens": request.accepted_tokens,
                "preemptions": request.num_preemptions,
                "counted": request.counted,
            }
        )

    def too_late(self, row: int) -> int:
        """Notes an attempt that ended when nobody waited for it any more: its request is as if it had not.

        Returns:
            How it had ended.
        """
        columns = self._recorder.requests()
        if not np.isfinite(columns["finished_s"][row]):
            return REJECTED
        attempt, status = self._row(columns, row), int(columns["status"][row])
        self.add(attempt)
        nothing = dict.fromkeys((*SUMMED, "output_tokens", "status"), 0)
        self._recorder.request(row, **nothing, finished_s=nan)
        return status

    def _row(self, columns: Columns, row: int) -> dict[str, float]:
        """Returns what the columns of requests say of one, as an attempt."""
        names = [name for name in (*ATTEMPT_TIMES, *ATTEMPT_COUNTS) if name in columns]
        known = {name: float(columns[name][row]) for name in names}
        mine = {"request_id": row, "prompt_tokens": int(self._table.prompt_tokens[row])}
        return known | mine | {"counted": row >= self._num_warmups}

    def add(self, attempt: dict[str, float]) -> None:
        """Notes an attempt, by the names of a request's columns, whose client has sent the request again."""
        row = int(attempt["request_id"])
        sums = self._sums.setdefault(row, nothing_summed())
        for name in SUMMED:
            sums[name] += int(attempt[name])
        sums["wasted"] += int(attempt["output_tokens"])
        self._rows.append(attempt | {"status": GAVE_UP, "lost_s": nan})

    def merged(self, found: Columns, client: Client, refusals: dict[str, int]) -> tuple[Columns, Columns]:
        """Returns the columns of requests with what their clients made of them, and those of attempts.

        Args:
            found: columns of those that ended here, each as its last attempt was.
            client: that gave them up.
            refusals: reasons with counts; those of requests given up are added.
        """
        assert client.patience is not None
        given = client.given_up()
        here = np.isfinite(found["finished_s"])
        over = here & np.isfinite(given["gave_up_s"])
        over &= np.isin(found["status"], (FINISHED, GAVE_UP))
        for row in np.flatnonzero(over).tolist():
            why = client.patience.why[row]
            refusals[why] = refusals.get(why, 0) + 1
        wasted = found.get("wasted_tokens", np.zeros(len(here), dtype=np.int64))
        found = found | {"status": np.where(over, GAVE_UP, found["status"])}
        last = [self._row(found, row) | {"lost_s": nan} for row in self._sums if here[row]]
        found["wasted_tokens"] = wasted + np.where(over, found["output_tokens"], 0)
        for row, sums in self._sums.items():
            if here[row]:
                found["wasted_tokens"][row] += sums["wasted"]
                for name in SUMMED:
                    found[name][row] += sums[name]
        for name in ("first_chunk_s", "last_chunk_s"):
            found[name] = np.where(over, nan, found[name])
        return found | given, self._columns(self._rows + last)

    @staticmethod
    def _columns(rows: list[dict[str, float]]) -> Columns:
        if not rows:
            return {}
        kinds = {**dict.fromkeys(ATTEMPT_TIMES, np.float64), **dict.fromkeys(ATTEMPT_COUNTS, np.int64)}
        return {name: np.array([row[name] for row in rows], dtype=kind) for name, kind in kinds.items()}
