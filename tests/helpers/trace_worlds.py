"""Random traces in the manner of the recorded ones, decided by our own scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, islice
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from replay import Replay

Trace = dict[str, Any]
MOST_STEPS = 4000


@st.composite
def inputs(draw: st.DrawFn, fixed: Mapping[str, Any] | None = None) -> Trace:
    """A trace without its steps: engines and requests small enough that all limits are met.

    Args:
        draw: of hypothesis.
        fixed: entries of `config` that are not drawn.
    """
    fixed = fixed or {}
    k = fixed.get("num_speculative_tokens", draw(st.sampled_from([0, 0, 1, 3])))
    config = {
        "max_num_seqs": draw(st.sampled_from([1, 3, 8])),
        "max_num_batched_tokens": draw(st.sampled_from([9, 16, 24, 64, 512])),
        "block_size": draw(st.sampled_from([4, 16])),
        "num_gpu_blocks": draw(st.sampled_from([12, 16, 24, 400, 400])),
        "max_model_len": 4096,
        "enable_prefix_caching": draw(st.booleans()),
        "enable_chunked_prefill": draw(st.sampled_from([True, True, True, False])),
        "long_prefill_token_threshold": 0,
        "long_prefill_token_threshold_adaptive": False,
        "policy": "fcfs",
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1])),
        "spec_method": draw(st.sampled_from(["ngram", "eagle", "draft_model"])) if k else None,
        "num_speculative_tokens": k,
        "async_scheduling": draw(st.booleans()),
    } | dict(fixed)
    gaps = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, 30]), min_size=1, max_size=12))
    requests = [draw(_request(number, config)) for number in range(len(gaps))]
    for request, arrival in zip(requests, accumulate(gaps), strict=True):
        request["arrival_step"] = arrival
    return {"config": config, "requests": requests, "truncated": False}


@st.composite
def _request(draw: st.DrawFn, number: int, config: dict[str, Any]) -> dict[str, Any]:
    size = config["block_size"]
    own = draw(st.integers(2, 4) | st.integers(2, 6 * size))
    common = size * draw(st.integers(0, 3)) if config["enable_prefix_caching"] else 0
    prompt: list[list[Any]] = [[f"{number}/in", own]]
    if common:
        prompt.insert(0, [draw(st.sampled_from(["a", "b"])), common])
    output = draw(st.integers(1, 24))
    request = {
        "id": number,
        "prompt_len": common + own,
        "output_len": output,
        "priority": 0,
        "prompt": prompt,
        "accept": draw(st.lists(st.integers(0, 3), min_size=1, max_size=4)),
    }
    if draw(st.booleans()):
        request["stop_at"] = draw(st.integers(1, output))
    return request


def decided(trace: Trace) -> Trace:
    """The same with the steps that our scheduler decides, one sequence after another."""
    steps = list(islice(Replay(trace).steps(), MOST_STEPS))
    assume(len(steps) < MOST_STEPS)
    return trace | {"steps": steps}
