"""What a step's time went into, and what speculation added to it, from the recorded iterations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hardware.stepcost import TERMS, StepCost, StepShape
from sim.recorder import Columns
from sim.simulation import RunResult

F64 = npt.NDArray[np.float64]
Shapes = dict[str, npt.NDArray[np.int64]]


def decode_shapes(iterations: Columns) -> Shapes:
    """Returns the step shapes of the iterations in which somebody decodes, as integer columns."""
    chosen = iterations["decode_sequences"] > 0
    return {name: iterations[name][chosen].astype(np.int64) for name in StepShape._fields}


def prefill_free(shapes: Shapes) -> Shapes:
    """Returns the steps without a prompt chunk, or all of them where there are none.

    A prompt chunk costs the same with and without drafts, and under load most steps carry one: it
    would hide what verification adds.
    """
    pure = shapes["prefill_sequences"] == 0
    return {name: column[pure] for name, column in shapes.items()} if pure.any() else shapes


def without_drafts(shapes: Shapes) -> Shapes:
    """Returns the same batches at the same contexts with nothing drafted and nothing verified."""
    drafts = shapes["draft_tokens"]
    plain = dict(shapes)
    for name in ("tokens", "logit_rows", "kv_tokens", "kv_tokens_in_window"):
        plain[name] = shapes[name] - drafts
    nothing = np.zeros_like(drafts)
    return plain | {
        "draft_tokens": nothing,
        "draft_passes": nothing,
        "uniform": (shapes["prefill_sequences"] == 0).astype(np.int64),
    }


def step_split(result: RunResult) -> dict[str, float]:
    """Returns the mean milliseconds of a decoding step by term, keyed `step_TERM_ms`, and `step_ms`."""
    shapes = decode_shapes(result.iterations)
    if not len(shapes["tokens"]):
        return {}
    terms = result.scenario.cost.terms(shapes)
    split = {f"step_{name}_ms": float(1e3 * terms[name].mean()) for name in TERMS}
    return split | {"step_ms": sum(split.values())}


def overheads(result: RunResult, plain_cost: StepCost) -> dict[str, float]:
    """Returns the two sides of the trade, each relative to the plain step at the same batch and context.

    Over the steps without a prompt chunk. `verify_overhead`: the step without drafting, over the plain
    step, minus 1. `draft_overhead`: what the drafter adds, over the plain step. `tokens_per_step`: tokens
    a sequence gets from a step in which it decodes; equal to the acceptance length where every step
    drafts. `gain` is `tokens_per_step / (1 + verify_overhead + draft_overhead)`: what a decoding step
    gains. Under load the user gains less, since prompts take their share of the time whatever is drafted.
    """
    decoding = decode_shapes(result.iterations)
    shapes = prefill_free(decoding)
    if not len(shapes["tokens"]) or not result.scenario.engine.num_speculative_tokens:
        return {}
    terms = result.scenario.cost.terms(shapes)
    plain = plain_cost.terms(without_drafts(shapes))
    base = sum(float(plain[name].sum()) for name in TERMS)
    verify = sum(float(terms[name].sum()) for name in TERMS if name != "drafter") / base - 1.0
    draft = float(terms["drafter"].sum()) / base
    requests = result.requests
    accepted = int(requests["accepted_tokens"].sum())
    per_step = 1.0 + accepted / int(decoding["decode_sequences"].sum())
    return {
        "verify_overhead": verify,
        "draft_overhead": draft,
        "tokens_per_step": per_step,
        "gain": per_step / (1.0 + verify + draft),
    }
