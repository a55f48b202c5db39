"""Random worlds in front of engines with TensorRT-LLM's capacity schedulers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from sim_toys import World
from timeline_worlds import worlds

from specfleet.experiments.point.trtllm import capacity_rules

POLICIES = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH")
LOOPS = ("open", "closed", "capped", "balanced")


@st.composite
def capacity_worlds(
    draw: st.DrawFn, policies: tuple[str, ...] = POLICIES, loops: tuple[str, ...] = LOOPS, replicas: int = 2
) -> World:
    """Requests in front of a capacity scheduler; half of the worlds have a pool that is short.

    Args:
        draw: hypothesis's.
        policies: `capacity_scheduler_policy`, one of these.
        loops, replicas: as in `timeline_worlds.worlds`.
    """
    tight = draw(st.booleans())
    world = draw(worlds(loops, replicas, tight=tight, crowded=draw(st.sampled_from([False, False, True]))))
    engine = world.engine
    least = max(engine.max_num_batched_tokens, engine.block_size + 8)  # a piece, and the drafter's slots
    engine = replace(engine, max_num_batched_tokens=least)
    return replace(world, engine=replace(engine, **capacity_rules(draw(st.sampled_from(policies)))))
