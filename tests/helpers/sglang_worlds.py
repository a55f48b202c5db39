"""Random worlds in front of engines with SGLang's scheduler."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from sim_toys import World, drafting
from timeline_worlds import LOOKED_UP, LUCK, policies, sharing, worlds

from specfleet.sim.config import SglangConfig
from specfleet.sim.speculation.policy import PolicySpec

LOOPS = ("open", "closed", "capped", "balanced", "sparse")


@st.composite
def sglang_worlds(
    draw: st.DrawFn, loops: tuple[str, ...] = LOOPS, replicas: int = 3, crowded: bool = False
) -> World:
    """Requests in front of SGLang's scheduler: prompts cut, outputs cut, lists that are full, promises that
    do not hold; with overlap and without, plain, and with a chain or a tree.

    Args:
        draw: hypothesis's.
        loops, replicas: as in `timeline_worlds.worlds`.
        crowded: promises decide who is admitted, with overlap.
    """
    tight = crowded or draw(st.booleans())
    dense = tuple(loop for loop in loops if loop != "sparse") if tight else loops
    return draw(under_sglang(draw(worlds(dense, replicas, tight=tight)), tight, crowded))


@st.composite
def retracting_sglang_worlds(draw: st.DrawFn, loops: tuple[str, ...] = LOOPS, replicas: int = 2) -> World:
    """The same with promises far too bold: somebody is retracted in most of them."""
    dense = tuple(loop for loop in loops if loop != "sparse")
    world = draw(under_sglang(draw(worlds(dense, replicas, tight=True)), True, False))
    assert world.engine.sglang is not None
    bold = replace(world.engine.sglang, schedule_conservativeness=0.02, ignore_eos=False)
    page, tokens = world.engine.block_size, draw(st.sampled_from([150, 200, 260]))
    return replace(world, engine=replace(world.engine, num_gpu_blocks=tokens // page + 1, sglang=bold))


@st.composite
def displacing_sglang_worlds(draw: st.DrawFn, loops: tuple[str, ...] = LOOPS, replicas: int = 2) -> World:
    """The same with priorities before a short list: who waits displaces who runs."""
    dense = tuple(loop for loop in loops if loop != "sparse")
    kind = sharing(dense, replicas) if draw(st.booleans()) else worlds(dense, replicas, tight=True)
    world = draw(under_sglang(draw(kind), True, False))
    assert world.engine.sglang is not None
    settings = replace(
        world.engine.sglang,
        enable_priority_scheduling=True,
        disable_priority_preemption=False,
        priority_scheduling_preemption_threshold=draw(st.sampled_from([0, 1])),
    )
    tokens = draw(st.sampled_from([300, 900, 3000]))
    engine = replace(
        world.engine,
        max_num_seqs=draw(st.sampled_from([1, 2, 4])),
        num_gpu_blocks=tokens // world.engine.block_size + 1,
        sglang=settings,
    )
    return replace(world, engine=engine)


@st.composite
def planned_sglang_worlds(draw: st.DrawFn, loops: tuple[str, ...] = LOOPS) -> tuple[World, PolicySpec]:
    """The same with drafts, prompts that nobody shares, and K by batch size or queue."""
    world = draw(sglang_worlds(loops, 1))
    assert world.engine.sglang is not None
    classes = {name: draw(st.sampled_from(LUCK)) for name in ("a", "b")}
    settings = replace(world.engine.sglang, enable_priority_scheduling=False)
    engine = drafting(3, engine=replace(world.engine, sglang=settings, enable_prefix_caching=True))
    by_count = policies().filter(lambda policy: policy.name in ("batch_size", "disable_above_queue"))
    return replace(world, engine=engine, classes=classes), draw(by_count)


@st.composite
def looking_sglang_worlds(draw: st.DrawFn, loops: tuple[str, ...] = LOOPS, replicas: int = 2) -> World:
    """The same with look-ups that may find nothing, sometimes behind prompts that begin alike."""
    kind = st.one_of(sglang_worlds(loops, replicas), sharing_sglang_worlds(loops, replicas))
    world: World = draw(kind)
    classes = {name: draw(st.sampled_from((*LOOKED_UP, LUCK[0]))) for name in ("a", "b", "")}
    return replace(world, engine=drafting(4, "ngram", engine=world.engine), classes=classes)


@st.composite
def sliding_sglang_worlds(draw: st.DrawFn, loops: tuple[str, ...] = LOOPS) -> World:
    """Any of these with layers that see a window of keys, which most contexts outgrow."""
    kinds = sglang_worlds, sharing_sglang_worlds, retracting_sglang_worlds, displacing_sglang_worlds
    world: World = draw(st.one_of(*(kind(loops, 2) for kind in kinds)))
    return replace(world, engine=replace(world.engine, sliding_window=draw(st.sampled_from([5, 20, 40]))))


@st.composite
def sharing_sglang_worlds(draw: st.DrawFn, loops: tuple[str, ...] = LOOPS, replicas: int = 2) -> World:
    """The same with prompts that begin alike, in a pool that holds little more than is needed at once."""
    world = draw(sharing(loops, replicas))
    largest = max(map(sum, zip(world.prompt, world.output, strict=True)))
    tight = draw(st.booleans())
    again = draw(under_sglang(world, tight, False))
    tokens = int(largest * draw(st.sampled_from([1.5, 2.5, 4.0, 8.0]))) + 60
    engine = replace(
        again.engine,
        num_gpu_blocks=tokens // again.engine.block_size + 2,
        enable_prefix_caching=True,
        max_model_len=draw(st.sampled_from([4096, 4096, 120])),
    )
    return replace(again, engine=engine)


@st.composite
def under_sglang(draw: st.DrawFn, world: World, tight: bool, crowded: bool) -> World:
    """A world under SGLang's scheduler."""
    page = draw(st.sampled_from([1, 1, 4, 16]))
    tokens = draw(st.sampled_from([300, 400, 600, 900] if tight else [500, 1000, 3000, 20_000]))
    settings = SglangConfig(
        chunked_prefill_size=draw(st.sampled_from([-1, 16, 64, 8192])),
        max_prefill_tokens=draw(st.sampled_from([40, 16384])),
        prefill_max_requests=draw(st.sampled_from([None, None, 1, 3])),
        schedule_policy=draw(st.sampled_from(["fcfs", "lpm"])),
        schedule_conservativeness=draw(st.sampled_from([0.3, 1.0, 1.0, 1.2, 2.0])),
        enable_priority_scheduling=draw(st.sampled_from([False, False, False, True])),
        schedule_low_priority_values_first=draw(st.booleans()),
        priority_scheduling_preemption_threshold=draw(st.sampled_from([0, 0, 10])),
        disable_priority_preemption=draw(st.booleans()),
        retraction_policy=draw(st.sampled_from(["length", "priority"])),
        ignore_eos=draw(st.sampled_from([False, False, True])),
        speculative_num_steps=draw(st.sampled_from([0, 2])),
        speculative_eagle_topk=draw(st.sampled_from([1, 1, 2])),
    )
    engine = replace(
        world.engine,
        block_size=page,
        num_gpu_blocks=tokens // page + 1,
        max_num_seqs=24 if tight else draw(st.sampled_from([1, 2, 5, 24])),
        max_model_len=draw(st.sampled_from([60, 100, 4096, 4096])),
        enable_prefix_caching=draw(st.booleans()),
        sliding_window=0,
        kv_layout=None,
        sglang=settings,
    )
    if crowded:
        engine = replace(engine, async_scheduling=True, max_model_len=4096)
    return replace(world, engine=engine)
