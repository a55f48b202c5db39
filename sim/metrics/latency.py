"""Where a request's latency went: parts that add up to it, each computed from its own columns.

Client time, queueing and the request's own prefill are differences of its times. Its decoding is the
sum of the iterations between its first and last token, each split by pricing its batch three times: as
it was, without prompt chunks, and without drafts on an engine that has no drafter. Time in which it
got no iteration (preempted, or past the budget) is a part of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specfleet.hardware.stepcost import TERMS, StepCost, StepShape
from specfleet.sim.laws.names import PARTS as PARTS_SUM
from specfleet.sim.laws.names import first, request_breach
from specfleet.sim.recorder import FINISHED, Columns
from specfleet.sim.scenario import RunResult

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Shapes = dict[str, npt.NDArray[np.int64]]

PARTS = {
    "client_s": "client: sending, receiving, handling chunks",
    "queue_s": "waiting for admission",
    "prefill_s": "its own prompt, and what runs beside it",
    "decode_s": "plain decoding, at the mean acceptance of all requests",
    "low_acceptance_s": "more rounds than at mean acceptance (negative: fewer)",
    "others_prefill_s": "prompts of others in its steps",
    "verify_s": "verification beyond a plain step",
    "draft_s": "drafting",
    "host_s": "host",
    "paused_s": "no iteration: preempted and recomputed, past the token budget, waiting for a slower rank "
    "or a stage, or lost with a replica",
}
"""Parts of a request's end-to-end time, and what each is."""

HANDOVER_PARTS = {
    "handover_s": "from the end of its prompt until the decode replica has blocks for it",
    "transfer_s": "KV on its way, beyond what was sent while the prompt was computed",
    "decode_queue_s": "waiting at the decode replica with its KV there",
    "first_step_s": "the step that computes the last token of its prompt again",
}
"""Parts that only requests have whose KV is handed over: between `prefill_s` and `decode_s`."""

MOST_APART_S, CLOCK_ROUNDING = 1e-9, 1e-12
"""How far a sum of parts may be from the whole: seconds, and of the time on the clock, over which steps are
summed up."""

DECODE_PARTS = (
    "decode_s",
    "low_acceptance_s",
    "others_prefill_s",
    "verify_s",
    "draft_s",
    "host_s",
    "paused_s",
)
"""The parts that make up TPOT."""

ITERATION_PARTS = ("plain", "others_prefill", "verify", "draft", "host")
"""What an iteration's time is split into."""
BLOCK, REQUESTS = 32_768, 16_384
"""Iterations that are priced at one time, and requests that are split."""


def without_prompts(shapes: Shapes) -> Shapes:
    """Returns the same steps with their decoding rows alone."""
    chunk = shapes["tokens"] - shapes["decode_sequences"] - shapes["draft_tokens"]
    nothing = np.zeros_like(chunk)
    return shapes | {
        "tokens": shapes["tokens"] - chunk,
        "logit_rows": shapes["logit_rows"] - shapes["prefill_sequences"],
        "prefill_sequences": nothing,
        "prefill_pairs": nothing,
    }


def without_drafts(shapes: Shapes) -> Shapes:
    """Returns the same batches at the same contexts with nothing drafted and nothing verified."""
    drafts = shapes["draft_tokens"]
    plain = dict(shapes)
    for name in ("tokens", "logit_rows", "kv_tokens", "kv_tokens_in_window"):
        plain[name] = shapes[name] - drafts
    nothing = np.zeros_like(drafts)
    return plain | {"draft_tokens": nothing, "draft_passes": nothing}


def _kernels(cost: StepCost, shapes: Shapes) -> F64:
    """Returns the seconds of steps beside host and drafter."""
    terms = cost.terms(shapes)
    total: F64 = np.zeros(len(shapes["tokens"]))
    for name in TERMS:
        if name not in ("host", "drafter"):
            total = total + terms[name]
    return total


def iteration_parts(result: RunResult, plain_cost: StepCost) -> dict[str, F64]:
    """Splits every iteration that somebody waits for decoding; the others are zero.

    Those are the iterations with a decoding row, and those in which who was preempted gets its next token at
    once, from the recomputed prompt.

    Args:
        result: a finished run.
        plain_cost: prices the same engine without a drafter.

    Returns:
        `plain`, `others_prefill`, `verify`, `draft`, `host`: seconds, a value an iteration; their sum is
        the time since the iteration before. Of ranks that step together `paused` is what the slowest rank
        takes beyond that, of a pipeline what the batch waits for stages, of a replica that is slow for a
        while what it is late.
    """
    rows = result.iterations
    steps = len(rows["decode_sequences"])
    found = {name: np.zeros(steps) for name in ITERATION_PARTS}
    for start in range(0, steps, BLOCK):
        block = slice(start, start + BLOCK)
        portion = {name: rows[name][block] for name in (*StepShape._fields, "reroll", "gaps_by_tokens")}
        for name, seconds in _parts_of(portion, result.scenario.cost, plain_cost).items():
            found[name][block] = seconds
    deployment, stages = result.scenario.deployment, result.scenario.engine.pipeline_parallel_size
    if deployment.lockstep > 1 or stages > 1 or deployment.failures is not None:
        told = sum(found.values())
        found["paused"] = np.where(told > 0.0, rows["end_s"] - rows["start_s"] - told, 0.0)
    if result.scenario.engine.rebuilds_drafter_kv:
        told = sum(found.values())
        found["draft"] += np.where(told > 0.0, rows["end_s"] - rows["start_s"] - told, 0.0)
    return found


def _parts_of(rows: Columns, cost: StepCost, plain_cost: StepCost) -> dict[str, F64]:
    """Splits some iterations, as `iteration_parts` does."""
    shapes = {name: rows[name].astype(np.int64) for name in StepShape._fields}
    decoding = (rows["decode_sequences"] > 0) | (rows["gaps_by_tokens"].sum(axis=1) > 0)
    shapes = {name: np.where(decoding, column, 0) for name, column in shapes.items()}
    pure = without_prompts(shapes)
    whole, no_prompts = _kernels(cost, shapes), _kernels(cost, pure)
    plain = _kernels(plain_cost, without_drafts(pure))
    terms = cost.terms(shapes)
    again = np.where(rows["reroll"] > 0, whole + terms["host"], 0.0)
    parts = (plain, whole - no_prompts, no_prompts - plain + again, terms["drafter"], terms["host"])
    return {
        name: np.where(decoding, seconds, 0.0) for name, seconds in zip(ITERATION_PARTS, parts, strict=True)
    }


def latency_split(result: RunResult, plain_cost: StepCost) -> dict[str, F64]:
    """Returns each part of `PARTS` for every finished request, seconds, in request order.

    Of requests whose KV was handed over (a part of a run whose pools decode) those of `HANDOVER_PARTS`, too.

    Their sum is the request's end-to-end time on the client's clock.

    Raises:
        Breach: it is not.
    """
    pieces = [split for _, split in split_in_pieces(result, plain_cost)]
    handed = HANDOVER_PARTS if "prefilled_s" in result.requests else {}
    return {
        name: np.concatenate([np.empty(0), *(piece[name] for piece in pieces)]) for name in (*PARTS, *handed)
    }


def split_in_pieces(result: RunResult, plain_cost: StepCost) -> Iterator[tuple[I64, dict[str, F64]]]:
    """Yields some finished requests after others, by row, with what `latency_split` says of them.

    Raises:
        Breach: as `latency_split`.
    """
    requests = result.requests
    done = np.flatnonzero(requests["status"] == FINISHED)
    output = requests["output_tokens"][done].astype(np.float64)
    rounds = np.maximum(requests["chunks"][done] - 1, 0)
    per_round = max((output - 1).sum() / max(float(rounds.sum()), 1.0), 1.0)
    del output, rounds
    until = _until(result, plain_cost)
    for start in range(0, len(done), REQUESTS):
        ids = done[start : start + REQUESTS]
        each = {name: column[ids] for name, column in requests.items()}
        split = _split(each, _decode_sums(result, until, each), per_round)
        _check_sums(split, each)
        yield ids, split


def _split(each: Columns, sums: Mapping[str, F64], per_round: float) -> dict[str, F64]:
    """Returns the parts of requests, for the mean tokens of a round of all of them."""
    output = each["output_tokens"].astype(np.float64)
    rounds = np.maximum(each["chunks"] - 1, 0)
    share = np.divide((output - 1) / per_round, rounds, out=np.ones_like(output), where=rounds > 0)
    before = dict(until_first_token(each))
    client_s = before.pop("client_s") + (each["last_chunk_s"] - each["finished_s"])
    return {
        "client_s": client_s,
        **before,
        "decode_s": sums["plain"] * share,
        "low_acceptance_s": sums["plain"] * (1.0 - share),
        "others_prefill_s": sums["others_prefill"],
        "verify_s": sums["verify"],
        "draft_s": sums["draft"],
        "host_s": sums["host"],
        "paused_s": sums["paused"],
    }


def until_first_token(each: Columns) -> Iterator[tuple[str, F64]]:
    """Yields the parts of the time from when requests were sent until the engine has their first token, one
    at a time: each is a column as long as the requests.

    Args:
        each: columns of requests; of those whose KV was handed over, of the pool that decodes, or of the run.
    """
    if "prefilled_s" not in each:
        yield "client_s", each["arrived_s"] - each["sent_s"]
        yield "queue_s", each["admitted_s"] - each["arrived_s"]
        yield "prefill_s", each["first_token_s"] - each["admitted_s"]
        return
    ready_s = np.maximum(each["opened_s"], each["prefilled_s"])
    arrived_s = each["prompt_arrived_s" if "prompt_arrived_s" in each else "arrived_s"]
    admitted_s = each["prompt_admitted_s" if "prompt_admitted_s" in each else "admitted_s"]
    yield "client_s", arrived_s - each["sent_s"]
    yield "queue_s", admitted_s - arrived_s
    yield "prefill_s", each["prefilled_s"] - admitted_s
    yield "handover_s", ready_s - each["prefilled_s"]
    yield "transfer_s", each["moved_s"] - ready_s
    yield "decode_queue_s", each["decode_admitted_s"] - each["moved_s"]
    yield "first_step_s", each["first_token_s"] - each["decode_admitted_s"]


def _check_sums(split: dict[str, F64], each: Columns) -> None:
    """Checks that the parts of every request sum to its end-to-end time.

    Raises:
        Breach: those of one do not.
    """
    total = each["last_chunk_s"] - each["sent_s"]
    wrong = ~(np.abs(sum(split.values()) - total) <= MOST_APART_S + CLOCK_ROUNDING * each["last_chunk_s"])
    if wrong.any():
        at = first(wrong)
        parts = ", ".join(f"{name} {seconds[at]:.9g}" for name, seconds in split.items())
        raise request_breach(PARTS_SUM, f"{parts} do not sum to {total[at]:.9g}", each, at)


class _Until(NamedTuple):
    """The parts of iterations, replica after replica.

    Attributes:
        parts: by part, of each replica the seconds before each of its iterations and after its last.
        whole: what the parts of each iteration sum to.
        before: where those of a replica begin in `parts`.
        steps: where its iterations begin in `whole`.
    """

    parts: dict[str, F64]
    whole: F64
    before: I64
    steps: I64


def _until(result: RunResult, plain_cost: StepCost) -> _Until:
    """Returns the parts of all iterations."""
    parts, replica = iteration_parts(result, plain_cost), result.iterations["replica"]
    counts = np.bincount(replica, minlength=result.scenario.deployment.replicas)
    order = np.argsort(replica, kind="stable")
    ends = np.cumsum(counts)
    bounds = list(zip((ends - counts).tolist(), ends.tolist(), strict=True))
    sums, whole = {}, np.zeros(len(replica))
    for name in list(parts):
        seconds = parts.pop(name)[order]
        whole = whole + seconds
        sums[name] = np.zeros(len(replica) + len(counts))
        for number, (low, high) in enumerate(bounds):
            np.cumsum(seconds[low:high], out=sums[name][low + number + 1 : high + number + 1])
    return _Until(sums, whole, ends - counts + np.arange(len(counts)), ends - counts)


def _decode_sums(result: RunResult, until: _Until, each: Columns) -> dict[str, F64]:
    """Returns, for each request, the sums of its iterations' parts and its pauses."""
    gaps, staged = result.odd_gaps, result.scenario.engine.pipeline_parallel_size > 1
    numbers = each["request_id"]  # of a pool's, those of the whole run
    most = max(int(numbers.max(initial=0)), int(gaps["request_id"].max(initial=0)))
    place = np.full(most + 1, -1, dtype=np.int32)
    place[numbers] = np.arange(len(numbers))
    odd = (place[gaps["request_id"]] >= 0) & (gaps["from_iteration"] >= 0)
    if {"interrupted_s", "client_retries"} & each.keys():  # those of earlier attempts: in it, or thrown away
        last = place[gaps["request_id"]]
        odd &= each["replica"][last] == gaps["replica"]
        odd &= gaps["from_iteration"] >= each["first_iteration"][last]
    who, where = place[gaps["request_id"][odd]], gaps["replica"][odd]
    begun, ended = (
        until.before[each["replica"]] + each[name] + 1 for name in ("first_iteration", "last_iteration")
    )
    before = until.before[where] + gaps["from_iteration"][odd] + 1
    after = until.before[where] + gaps["to_iteration"][odd] + (0 if staged else 1)
    sums = {"paused": np.zeros(len(numbers))}
    for name, seconds in until.parts.items():
        sums[name] = seconds[ended] - seconds[begun]
        np.subtract.at(sums[name], who, seconds[after] - seconds[before])
    np.add.at(sums["paused"], who, gaps["gap_s"][odd])
    if staged:  # between its batches are others; its own is no pause
        np.subtract.at(sums["paused"], who, until.whole[until.steps[where] + gaps["to_iteration"][odd]])
    if "interrupted_s" in each:  # from its first token, at a replica that failed, to the next at its last
        sums["paused"] += each["interrupted_s"]
    return sums
