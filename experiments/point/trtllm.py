"""TensorRT-LLM's capacity scheduler as switches of the rules in `sim.rules`.

After its documentation, not after recorded decisions: "Useful Runtime Options" and "Paged Attention, IFB, and
Request Scheduling" at nvidia.github.io/TensorRT-LLM.
"""

from __future__ import annotations

from typing import TypedDict

DEFAULT_POLICY = "GUARANTEED_NO_EVICT"
"""The capacity scheduler if nothing is said (documentation, SchedulerConfig)."""


class CapacityRules(TypedDict, total=False):
    """Fields of `EngineConfig`."""

    reserves_max_tokens: bool
    static_batching: bool
    cuts_prompts_at_blocks: bool


def capacity_rules(policy: str | None) -> CapacityRules:
    """Returns what a `capacity_scheduler_policy` switches on; nothing for None, another engine.

    `GUARANTEED_NO_EVICT` lets a request in only where KV for the prompt and max_tokens of everybody fits, so
    that a started request is never paused. `MAX_UTILIZATION` packs as many as the next step has blocks for
    and pauses the last to start when they run out: the rules without a switch. `STATIC_BATCH` reserves as
    the first, and lets nobody in before a batch has ended. Of a cut prompt all pieces but the last are whole
    KV blocks.
    """
    if policy is None:
        return {}
    return {
        "reserves_max_tokens": policy != "MAX_UTILIZATION",
        "static_batching": policy == "STATIC_BATCH",
        "cuts_prompts_at_blocks": True,
    }
