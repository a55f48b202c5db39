"""Mean TPOT of a closed loop in closed form, to hold a cost model against served benchmarks."""

from __future__ import annotations

from specfleet.hardware.stepcost import StepCost, StepShape


def closed_form_tpot(
    cost: StepCost, batch: int, input_len: float, output_len: float, max_num_batched_tokens: int = 8192
) -> float:
    """Seconds per output token of `batch` concurrent requests without speculation.

    `T(B) + (B - 1) / osl x (T(B + isl) - T(B))`: a step of B decodes at context `isl + osl / 2`, and, as
    each request sees the prompts of the B - 1 others once while it decodes, what a prompt adds to a step. A
    prompt longer than the budget leaves is cut into chunks. Lengths in tokens; they may be means. For exactly
    equal lengths it is better than simulating a start at time 0, which stays in lockstep for ever.
    """
    context = round(batch * (input_len + output_len / 2))
    decode = cost.seconds(_step(batch, context))
    prompt = past = 0.0
    left = max(1, round(input_len))
    while left > 0:
        chunk = min(left, max_num_batched_tokens - batch)
        if chunk < 1:
            raise ValueError(
                f"{batch} sequences fill the budget of {max_num_batched_tokens} tokens; raise it"
            )
        prompt += cost.seconds(_step(batch, context, chunk, int(past))) - decode
        past, left = past + chunk, left - chunk
    return decode + (batch - 1) / output_len * prompt


def _step(batch: int, kv_tokens: int, chunk: int = 0, past: int = 0) -> StepShape:
    """`batch` decodes and, with a chunk, one prompt of which `past` tokens are done."""
    prefills = 1 if chunk else 0
    pairs = past * chunk + chunk * (chunk + 1) // 2
    rows = batch + prefills
    return StepShape(batch + chunk, batch, prefills, rows, 0, kv_tokens, kv_tokens, pairs, 0)
