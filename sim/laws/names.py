"""The laws by name, and how a breach is said."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specfleet.sim.errors import Breach
from specfleet.sim.recorder import Columns

ENDS_ONCE = "every request ends once"
CAUSES = "nothing happens before its cause"
TOKENS = "tokens are conserved"
BLOCKS = "KV blocks are conserved"
LIMITS = "no step exceeds its limits"
ONE_BATCH = "a replica runs one batch at a time"
BUSY = "nothing is busier than always"
LITTLE = "Little's law"
DATASHEET = "no step is faster than the datasheet"
SCALING = "replicas are within their bounds and paid for while they work"
HANDOVER = "KV is handed over whole, and no link is faster than it is"
IN_FLIGHT = "no more requests are in flight than max_concurrency"
PARTS = "the parts of a latency sum to the whole"
BOTH_WAYS = "the calendar gives what stepping gives"

LAWS = {
    ENDS_ONCE: "a request is finished or refused, never both, never neither; refusals are counted",
    CAUSES: "sent, arrived, admitted, first token, last token, and the client's chunks, in this order",
    TOKENS: "tokens of requests are those of iterations, of chunks and of verifications; each is computed",
    BLOCKS: "KV blocks in use and free are the pool in every step; none is in use at the end",
    LIMITS: "sequences, tokens with draft slots, drafts and KV blocks of every step, by the configuration",
    ONE_BATCH: "an iteration begins when the one before it has ended, or later, and takes no negative time; "
    "of a pipeline as many are under way as there are stages, in their order",
    BUSY: "a GPU is busy for at most all of the time, and a batch for at most its seats",
    LITTLE: "requests present, summed over time, are the requests' time in the engine, but for the part of a "
    "step in which a request arrives before it is seen",
    DATASHEET: "the bytes and the FLOP that a step needs at least, over its time, at the datasheet's rates",
    SCALING: "an autoscaled replica is ordered, up, draining, gone, in this order; as many are up as the "
    "least number, no more are there than the largest; who is sent somewhere, is sent to one that is up, and "
    "a step begins while its replica is paid for",
    HANDOVER: "where pools have roles, the KV of every prompt is sent once, in whole blocks, to a replica "
    "that has room for it, before that goes on and before the other is free of it; transfers over a link "
    "take at least their bytes over its rate",
    IN_FLIGHT: "a closed or capped loop never has more requests sent and not answered",
    PARTS: "latency parts, each from its own columns, sum to the end-to-end time within 1e-9 s",
    BOTH_WAYS: "every column of a run, to the last bit (checked by `--check` alone)",
}
"""Each law, and what it says."""

Mask = npt.NDArray[np.bool_]


def first(mask: Mask) -> int:
    """Returns where a mask is first true."""
    return int(mask.argmax())


def request_breach(law: str, said: str, rows: Columns, at: int) -> Breach:
    """Returns the breach of row `at` of some request columns, at the last time that is known of it."""
    ids, replica = rows.get("request_id"), rows.get("replica")
    times = [float(rows[name][at]) for name in ("finished_s", "arrived_s", "sent_s") if name in rows]
    return Breach(
        law,
        said,
        None if ids is None else int(ids[at]),
        next((time for time in times if time == time), None),
        None if replica is None else int(replica[at]),
    )
