"""Laws of single requests, over whole columns or any portion of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specfleet.sim.config import EngineConfig
from specfleet.sim.laws.names import CAUSES, ENDS_ONCE, TOKENS, Mask, first, request_breach
from specfleet.sim.recorder import ABORTED, FINISHED, GAVE_UP, LOST, REJECTED, TIMED_OUT, Columns

ORDER = (
    ("sent_s", "arrived_s"),
    ("arrived_s", "admitted_s"),
    ("admitted_s", "first_token_s"),
    ("first_token_s", "finished_s"),
    ("first_token_s", "first_chunk_s"),
    ("first_chunk_s", "last_chunk_s"),
    ("finished_s", "last_chunk_s"),
)
"""What comes before what, where equal times are no fault."""


def finished(requests: Columns) -> Columns:
    """Returns the rows of those that were served; the columns themselves if all were."""
    done = requests["status"] == FINISHED
    if done.all():
        return requests
    return {name: column[done] for name, column in requests.items()}


def aborted(requests: Columns) -> Columns:
    """Returns the rows of those that were begun and ended with an error, or since their clients gave up."""
    gone = np.isin(requests["status"], (ABORTED, GAVE_UP)) & np.isfinite(requests["finished_s"])
    return {name: column[gone] for name, column in requests.items()}


def over_s(requests: Columns) -> npt.NDArray[np.float64]:
    """Returns when each request was answered, or refused, or given up."""
    if (requests["status"] == FINISHED).all():
        return requests["last_chunk_s"]
    refused = np.isin(requests["status"], (REJECTED, TIMED_OUT))
    over = np.where(refused, requests["arrived_s"], requests["last_chunk_s"])
    over = np.where(np.isin(requests["status"], (ABORTED, LOST)), requests["finished_s"], over)
    if "gave_up_s" in requests:
        over = np.where(np.isfinite(requests["gave_up_s"]), requests["gave_up_s"], over)
    return over


def check_requests(engine: EngineConfig, requests: Columns) -> Columns:
    """Checks each request (columns as `RunResult.requests`, some may lack); returns the finished ones.

    Raises:
        Breach: a law does not hold.
    """
    rows = finished(requests)
    if len(rows["status"]) < len(requests["status"]):
        _check_refused(engine, requests)
    never = ~np.isfinite(rows["finished_s"])
    if never.any():
        raise request_breach(ENDS_ONCE, "it never ended, and was not refused", rows, first(never))
    for before, after in ORDER:
        _check(CAUSES, before, "comes after", after, rows)
    _check(TOKENS, "cached_tokens", "found exceed", "prompt_tokens", rows)
    if (
        not {"retries", "client_retries"} & requests.keys()
    ):  # else of each attempt: others may have been at engines with another K
        check_drafts(engine, rows)
    return rows


def _check_refused(engine: EngineConfig, requests: Columns) -> None:
    """Who was refused has emitted nothing; only SGLang ends requests with an error; there is no other end."""
    status = requests["status"]
    odd = (status != FINISHED) & (status != REJECTED)
    if "retries" in requests:
        odd &= status != LOST
    if "gave_up_s" in requests:
        odd &= status != GAVE_UP
    if engine.sglang is not None:
        odd &= status != ABORTED
    if odd.any():
        raise request_breach(ENDS_ONCE, f"its status is {status[first(odd)]}", requests, first(odd))
    odd = (status == REJECTED) & np.isfinite(requests["finished_s"])
    if odd.any():
        raise request_breach(ENDS_ONCE, "it was refused, and ended as well", requests, first(odd))


def check_drafts(engine: EngineConfig, rows: Columns) -> None:
    """Checks that accepted drafts were drafted, and that a verification has at most K of them.

    Raises:
        Breach: a law does not hold.
    """
    k = engine.num_speculative_tokens
    if not k:
        return
    _check(TOKENS, "accepted_tokens", "exceed", "draft_tokens", rows)
    most = rows["draft_tokens"] > k * rows["verifications"]
    if most.any():
        at = first(most)
        said = f"{rows['draft_tokens'][at]} drafts in {rows['verifications'][at]} verifications of {k}"
        raise request_breach(TOKENS, said, rows, at)


def check_emitted(engine: EngineConfig, rows: Columns) -> None:
    """Checks what each request emitted: a chunk is a sampled token and the accepted drafts before.

    The last chunk is cut at the end of the request. SGLang throws away what was in flight for a request when
    it takes its KV, after it was verified.

    Raises:
        Breach: it emitted more, or less.
    """
    surplus = rows["chunks"] + rows["accepted_tokens"]
    surplus = surplus - rows["output_tokens"]
    most: int | npt.NDArray[np.int64] = engine.num_speculative_tokens
    if engine.sglang is not None:
        most = most * (1 + rows["preemptions"])
    if len(surplus) and not (surplus.min() >= 0 and (surplus <= most).all()):
        at = first((surplus < 0) | (surplus > most))
        chunks, accepted, output = (
            int(rows[name][at]) for name in ("chunks", "accepted_tokens", "output_tokens")
        )
        said = f"{chunks} chunks and {accepted} accepted drafts gave {output} tokens"
        raise request_breach(TOKENS, said, rows, at)


def _check(law: str, low: str, how: str, high: str, rows: Columns) -> None:
    """Checks that no value of one column is above that of another."""
    a, b = rows[low], rows[high]
    if a is b:
        return
    good: Mask = a <= b
    if not good.all():
        at = first(~good)
        raise request_breach(law, f"{low} {a[at]:.9g} {how} {high} {b[at]:.9g}", rows, at)
