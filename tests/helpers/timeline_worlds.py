"""Random worlds for the fast path, and what it means that two runs are equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from sim_toys import World, drafting

from specfleet.hardware.kernels import Array
from specfleet.hardware.stepcost import StepShape
from specfleet.sim.config import NO_CLIENT, ClientConfig, DeploymentConfig, EngineConfig, LoadConfig
from specfleet.sim.kvlayout import KvLayout
from specfleet.sim.laws.everywhere import by_replica, differences
from specfleet.sim.router import ROUTERS
from specfleet.sim.simulation import RunResult, simulate
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.sim.speculation.bursts import Burst, HotCold
from specfleet.sim.speculation.overlap import Overlap
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.sim.speculation.spread import LowAtom
from specfleet.sim.speculation.trees import shape
from specfleet.workloads.requests import RequestTable

TICK = 1 / 1024
"""Prices and arrivals on this grid tie all the time, and add up without rounding."""


@dataclass(frozen=True)
class Affine:
    """A price with every part of a shape in it, in several terms: nothing may be added in another order."""

    step_s: float
    token_s: float
    kv_s: float
    pair_s: float
    pass_s: float

    def seconds(self, shape: StepShape) -> float:
        """Seconds of one step: `terms` of one shape, added in order."""
        columns = {name: np.array([value]) for name, value in shape._asdict().items()}
        total = 0.0
        for term in self.terms(columns).values():
            total = total + float(term[0])
        return total

    def terms(self, columns: Mapping[str, np.ndarray]) -> dict[str, Array]:
        """Seconds by term."""
        rows = columns["logit_rows"] + columns["draft_tokens"]
        return {
            "weights": self.step_s + self.token_s * columns["tokens"],
            "kv": np.asarray(self.kv_s * (columns["kv_tokens"] + columns["kv_tokens_in_window"])),
            "compute": np.asarray(self.pair_s * columns["prefill_pairs"]),
            "launch": np.asarray(self.token_s * columns["prefill_sequences"]),
            "host": np.asarray(self.kv_s * (columns["decode_sequences"] + rows)),
            "drafter": np.asarray(self.pass_s * columns["draft_passes"]),
        }

    def summary(self) -> str:
        """A toy."""
        return "affine"


LUCK = (
    AcceptanceSpec(conditional_acceptance=0.7),
    AcceptanceSpec(conditional_acceptance=0.0),
    AcceptanceSpec(conditional_acceptance=1.0),
    AcceptanceSpec(by_position=(0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05), concentration=6.0),
    AcceptanceSpec(conditional_acceptance=0.6, concentration=3.0, low_atom=LowAtom(0.2, 0.0, 0.1)),
    AcceptanceSpec(conditional_acceptance=0.6, context_multiplier=((1.0, 1.0), (60.0, 0.3))),
)
LOOKED_UP = (
    AcceptanceSpec(conditional_acceptance=0.8, proposal_probability=0.5, proposal_persistence=0.8),
    AcceptanceSpec(conditional_acceptance=0.6, proposal_probability=0.4, proposal_persistence=0.1),
    AcceptanceSpec(
        by_position=(0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.04, 0.03), hot_cold=HotCold(0.7, 0.2, 0.9, 0.3)
    ),
)
ODD_LUCK = (
    AcceptanceSpec(acceptance_length=2.4, measured_at_k=4, decay=0.9, synthetic=True, source="an engine"),
    AcceptanceSpec(
        draft_acceptance_rate=0.4, measured_at_k=3, burst=Burst(0.5, 0.7), proposal_persistence=0.5
    ),
    AcceptanceSpec(
        conditional_acceptance=0.7,
        concentration=5.0,
        temperature_multiplier=((0.0, 1.0), (1.0, 0.5)),
        length_rank_correlation=-0.4,
    ),
    AcceptanceSpec(conditional_acceptance=0.7, overlap=Overlap()),
    *LOOKED_UP,
    AcceptanceSpec(conditional_acceptance=0.7, tree=shape([2, 1]), by_rank=(0.6, 0.2)),
)
lucks = st.sampled_from([*LUCK, *LUCK, *ODD_LUCK])


@st.composite
def engines(draw: st.DrawFn, k: int) -> EngineConfig:
    """An engine from bare to ample."""
    block = draw(st.sampled_from([1, 4, 16]))
    seqs = draw(st.sampled_from([1, 2, 5, 24]))
    method = draw(st.sampled_from(["eagle3", "draft_model", "ngram"]))
    parallel, limit = draw(st.sampled_from([False, False, True])), draw(st.sampled_from([None, None, 120]))
    depth = draw(st.sampled_from([None, None, 2])) if k > 1 else None  # no tree is deeper than its nodes
    engine = drafting(k, method, parallel_drafting=parallel, drafter_max_model_len=limit, draft_depth=depth)
    return replace(
        engine,
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.sampled_from([16, 40, 120, 4096])),
        num_gpu_blocks=draw(st.sampled_from([180, 240, 400, 5000])) // block + 3,
        block_size=block,
        max_model_len=draw(st.sampled_from([160, 4096])),
        enable_prefix_caching=draw(st.sampled_from([False, False, False, True])),
        enable_chunked_prefill=draw(st.sampled_from([True, True, False])),
        async_scheduling=draw(st.booleans()),
        lookahead_at_admission=draw(st.booleans()),
        scheduler_reserve_full_isl=draw(st.booleans()),
        skips_unused_drafts=draw(st.booleans()),
        charges_draft_slots=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.05])),
        sliding_window=draw(st.sampled_from([0, 0, 1, 20])),
        kv_layout=draw(
            st.sampled_from([None, None, KvLayout(20, 2048, 0), KvLayout(0, 0, 9), KvLayout(33, 700, 5)])
        ),
        prefix_hash_covers_next_token=draw(st.booleans()),
        pads_one_token_admission=draw(st.booleans()),
        long_prefill_token_threshold_adaptive=draw(st.booleans()),
        spares_lone_long_prefill=draw(st.booleans()),
    )


@st.composite
def worlds(
    draw: st.DrawFn,
    loops: tuple[str, ...] = ("open",),
    replicas: int = 1,
    tight: bool = False,
    crowded: bool = False,
) -> World:
    """Requests in front of an engine; sparse to overloaded; on a grid of ties or off it.

    Args:
        draw: hypothesis's.
        loops: `open`, `closed`, `capped`, `balanced` (open, the router sees loads), `sparse` (open, few
            at a time, many ties).
        replicas: most of them.
        tight: KV is short all the time.
        crowded: a step's token budget is short now and then.
    """
    loop = draw(st.sampled_from(loops))
    balanced, sparse = loop == "balanced", loop == "sparse"
    n = draw(st.integers(8 if tight else 1, 30))
    k = draw(st.sampled_from([1, 4, 7] if crowded else [0, 0, 1, 2, 4, 7]))
    tied = sparse or draw(st.booleans())
    loop = "open" if balanced or sparse else loop
    mean = draw(
        st.sampled_from([0.5, 4.0] if tight else [40.0, 400.0] if sparse else [0.5, 4.0, 40.0, 400.0])
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    gaps = rng.exponential(mean, n)
    arrival = np.cumsum(np.floor(gaps) if tied else gaps) * TICK
    longest = draw(st.sampled_from([40, 60] if tight or sparse else [3, 20, 60]))
    output = rng.integers(1, longest + 1, n)
    spare = np.where(rng.random(n) < 0.4, rng.integers(0, 3, n), 0)
    engine = draw(engines(k))
    if tight:
        pool = draw(st.sampled_from([180, 220])) // engine.block_size + 3
        roomy = replace(engine, max_num_seqs=24, max_num_batched_tokens=draw(st.sampled_from([250, 4096])))
        caches = draw(st.booleans())
        engine = replace(roomy, num_gpu_blocks=pool, enable_prefix_caching=caches, max_model_len=4096)
    if crowded:
        many, budget = draw(st.sampled_from([4, 12])), draw(st.sampled_from([16, 24, 40]))
        rest = replace(engine, max_num_seqs=many, max_num_batched_tokens=budget, max_model_len=4096)
        engine = replace(rest, enable_chunked_prefill=True)
    if tied:
        cost = Affine(4 * TICK, draw(st.sampled_from([0.0, TICK])), 0.0, 0.0, TICK)
        ticks = [ClientConfig(8 * TICK, 4 * TICK, TICK, TICK, chunk * TICK) for chunk in (1, 1, 40)]
        client = draw(st.sampled_from([NO_CLIENT, *ticks]))
    else:
        cost = Affine(0.01, 0.0003, 1.1e-5, 1.7e-6, 0.001)
        client = draw(
            st.sampled_from([NO_CLIENT, ClientConfig(), ClientConfig(), ClientConfig(chunk_s=0.05)])
        )
    return World(
        rng.integers(draw(st.sampled_from([1, 2, 2, 2])), draw(st.sampled_from([4, 30, 90])) + 1, n).tolist(),
        output.tolist(),
        max_tokens=(output + spare).tolist(),
        arrival_s=[0.0] * n if loop == "closed" else arrival.tolist(),
        engine=engine,
        cost=cost,  # type: ignore[arg-type]
        classes={"a": draw(lucks), "": draw(lucks)} if k else None,
        client=client,
        load=LoadConfig(
            None if loop == "open" else draw(st.integers(1, 8)), draw(st.sampled_from([0, 0, n // 2]))
        ),
        deployment=DeploymentConfig(
            draw(st.integers(1, replicas)),
            "least_outstanding" if balanced else draw(st.sampled_from(sorted(ROUTERS))),
        ),
    )


@st.composite
def sharing(
    draw: st.DrawFn,
    loops: tuple[str, ...] = ("open",),
    replicas: int = 1,
    kinds: tuple[str, ...] = ("grouped", "growing", "nested", "repeated"),
    chosen: bool = False,
) -> World:
    """Prompts that begin alike, in front of an engine that keeps them: little more than it needs at once.

    Args:
        draw: hypothesis's.
        loops, replicas: as in `worlds`.
        kinds: of prompts.
        chosen: a policy chooses K: the pool holds everybody at once.
    """
    world = _again(draw(worlds(loops, replicas)), draw(st.sampled_from([1, 2, 4])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = world.engine.block_size
    prompts = PROMPTS[draw(st.sampled_from(kinds))](rng, len(world.prompt), size)
    lengths = [sum(tokens for _, tokens in prompt) for prompt in prompts]
    largest = max(map(sum, zip(lengths, world.output, strict=True))) + 24
    seqs = draw(st.sampled_from([1, 2, 3, 6]))
    budget = draw(st.sampled_from([24, 60, 4096]))
    rooms = [1.0, 1.2, 3.0] if chosen else [0.6, 0.8, 1.0, 1.2, 3.0]
    engine = replace(
        world.engine,
        enable_prefix_caching=True,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        num_gpu_blocks=int(largest * seqs * draw(st.sampled_from(rooms))) // size + 6 + seqs * chosen,
        max_model_len=4096,
        prefix_hash_covers_next_token=draw(st.booleans()),
        pads_one_token_admission=draw(st.booleans()),
    )
    if engine.speculative is not None:
        k = max(engine.speculative.num_speculative_tokens, 3 if chosen else 1)
        speculative = replace(engine.speculative, num_speculative_tokens=k, drafter_max_model_len=None)
        engine = replace(engine, speculative=speculative)
    return replace(world, prompt=lengths, prompts=prompts, engine=engine)


def _again(world: World, times: int) -> World:
    """The same requests so many times."""
    assert world.arrival_s is not None
    assert world.max_tokens is not None
    last = world.arrival_s[-1]
    return replace(
        world,
        prompt=[*world.prompt] * times,
        output=[*world.output] * times,
        max_tokens=[*world.max_tokens] * times,
        arrival_s=[turn * last + due for turn in range(times) for due in world.arrival_s],
    )


Prompt = list[tuple[int, int]]


def _grouped(rng: np.random.Generator, n: int, size: int) -> list[Prompt]:
    """A system prompt of some groups, and something of one's own."""
    lengths = rng.integers(1, 6 * size + 2, 4)
    groups = rng.integers(0, 4, n)
    return [[(-1 - g, int(lengths[g])), (row, int(rng.integers(2, 30)))] for row, g in enumerate(groups)]


def _repeated(rng: np.random.Generator, n: int, size: int) -> list[Prompt]:
    """The same few prompts again and again: often all but one token is found."""
    lengths = rng.choice([size + 1, 2 * size, 2 * size + 1, 3 * size + 1, 5 * size + 1, 37], 3)
    return [[(-1 - g, int(max(lengths[g], 2)))] for g in rng.integers(0, 3, n)]


def _nested(rng: np.random.Generator, n: int, size: int) -> list[Prompt]:
    """Prompts that are beginnings of others."""
    return [[(-1, int(rng.integers(2, 70)))] for _ in range(n)]


def _growing(rng: np.random.Generator, n: int, size: int) -> list[Prompt]:
    """Turns of a few conversations behind one system prompt."""
    turns, system = [0] * 4, 2 * size + int(rng.choice([0, 0, 3]))
    prompts: list[Prompt] = []
    for who in rng.integers(0, 4, n):
        turns[who] += int(rng.integers(1, 12))
        prompts.append([(-9, system), (-1 - int(who), turns[who]), *[(len(prompts), 3)] * (who % 2)])
    return prompts


PROMPTS = {"grouped": _grouped, "repeated": _repeated, "nested": _nested, "growing": _growing}


@st.composite
def policies(draw: st.DrawFn) -> PolicySpec:
    """K by batch size or queue, up to 3, or learnt: changing all the time in small worlds."""
    kind = draw(st.sampled_from(["queue", "batch", "goodput", "adaptive_tiers", "bandit"]))
    if kind == "adaptive_tiers":
        return PolicySpec(kind, {"tiers": (1, 2, 3), "warmup": 0, "interval": draw(st.integers(1, 3))})
    if kind in ("goodput", "bandit"):
        return PolicySpec(kind)
    if kind == "queue":
        return PolicySpec("disable_above_queue", {"queue": draw(st.integers(0, 4))})
    tops = sorted(draw(st.sets(st.integers(1, 8), min_size=1, max_size=4)))
    lows = [1, *(top + 1 for top in tops)]
    drafts = [draw(st.integers(0, 3)) for _ in tops]
    return PolicySpec("batch_size", {"schedule": tuple(zip(lows, tops, drafts, strict=False))})


def requests(world: World) -> RequestTable:
    """Returns a world's requests: of two classes, with priorities, temperatures and sessions of two turns; in
    half of the worlds with luck that goes by class."""
    rows = np.arange(len(world.prompt))
    table = RequestTable.of(
        world.prompt,
        world.output,
        max_tokens=world.max_tokens,
        arrival_s=world.arrival_s,
        class_id=rows % 2,
        class_names=("a", "b"),
        segments=world.segments,
    )
    hot = np.asarray(rows % 4 * 0.4, dtype=np.float64)
    luck = (1 + rows % 2 << 40) + rows // 2 if sum(world.prompt) % 2 else None
    return replace(
        table, priority=rows % 3 - 1, temperature=hot, session_id=rows // 2, turn=rows % 2, luck_id=luck
    )


def both(world: World, seed: int, policy: PolicySpec | None = None) -> tuple[RunResult, RunResult]:
    """Runs a world as the product does, and by stepping."""
    scenario, table = replace(world.scenario(world.classes or {}), policy=policy), requests(world)
    return simulate(scenario, table, seed), simulate(scenario, table, seed, engine="step")


__all__ = ["LUCK", "TICK", "both", "by_replica", "differences", "engines", "policies", "requests", "worlds"]
