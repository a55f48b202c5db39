"""Rows of `cliffs` that put together what is on the calendar by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specfleet.sim.config import DeploymentConfig
from specfleet.sim.kvlayout import KvLayout
from specfleet.sim.speculation.policy import PolicySpec

if TYPE_CHECKING:
    from cliffs import Row

CACHING = ("enable_prefix_caching", True)
AHEAD = ("async_scheduling", True)
SHORT, TIGHT = ("num_gpu_blocks", 8000), ("num_gpu_blocks", 5000)
HALF = (("proposal_probability", 0.5),)
LADDER = {"schedule": ((1, 96, 4), (97, 120, 3), (121, 256, 2))}
POLICIES: dict[str, dict[str, Any]] = {
    "temperature_gate": {"limit": 0.5},
    "acceptance_gate": {},
    "early_stop": {},
    "by_class": {"drafts": {"a": 2}},
    "oracle": {},
    "slo_budget": {"tpot_s": 0.02, "budget": 256},
    "adaptive_verification": {},
    "batch_size": LADDER,
    "goodput": {},
}
"""Policies that are put together with the rest, with their parameters."""
USUAL = ("batch_size", "goodput")


def chosen(row: Row, name: str, base: Row, **fields: Any) -> Row:
    """Returns a row whose K is chosen by a policy."""
    hot, two = name == "temperature_gate", name == "by_class"
    return replace(
        row,
        name=f"{name}, {row.name}",
        base=base,
        policy=PolicySpec(name, POLICIES[name]),
        temperatures=hot,
        classes=two,
        ordinary=name in USUAL,
        **fields,
    )


def combinations(base: Row) -> Iterator[Row]:
    """Yields the rows, each with its base."""
    short = replace(base, name="KV short", engine=(SHORT,))
    shared = replace(base, name="shared prefix", engine=(CACHING,), shared=512)
    tight = replace(shared, name="shared prefix, KV short", engine=(CACHING, TIGHT))
    ahead = replace(base, name="asynchronous", engine=(AHEAD,))
    for name in POLICIES:
        yield chosen(short, name, base)
        yield chosen(shared, name, shared)
        yield chosen(tight, name, shared)
        yield chosen(ahead, name, ahead)
    yield from looked_up(base, shared)
    yield from drafters(base)
    yield from stepped(base, shared)
    yield from sessions(base)
    yield from windows(base)
    yield from deployed(base)


def looked_up(base: Row, shared: Row) -> Iterator[Row]:
    """Yields n-gram drafts, found always or half the time."""
    for name, ahead in (("", (AHEAD,)), (", synchronous", ())):
        always = replace(base, name=f"n-gram{name}", method="ngram", engine=ahead)
        half = replace(always, base=always, acceptance=HALF, ordinary=True)
        behind = replace(half, shared=512, base=replace(always, shared=512, engine=(*ahead, CACHING)))
        yield replace(half, name=f"n-gram, half match{name}")
        yield replace(half, name=f"n-gram, half match{name}, KV short", engine=(*ahead, SHORT))
        yield replace(behind, name=f"n-gram, half match{name}, shared prefix", engine=(*ahead, CACHING))
        tight = (*ahead, CACHING, TIGHT)
        yield replace(behind, name=f"n-gram, half match{name}, shared, KV short", engine=tight)
        yield replace(half, name=f"n-gram, half match{name}, goodput", policy=PolicySpec("goodput"))


def drafters(base: Row) -> Iterator[Row]:
    """Yields a drafter with fewer positions than the model."""
    varied = replace(base, name="lengths of conversations", lengths=True)
    cached = replace(varied, name="lengths, shared prefix", engine=(CACHING,), shared=512)
    limit = (("drafter_max_model_len", 2048),)
    few = replace(varied, base=varied, speculative=limit, ordinary=True)
    yield replace(few, name="drafter of 2,048")
    yield replace(few, name="drafter of 2,048, KV short", engine=(SHORT,))
    yield replace(few, name="drafter of 2,048, asynchronous", engine=(AHEAD,))
    behind = replace(few, base=cached, shared=512, engine=(CACHING,))
    yield replace(behind, name="drafter of 2,048, shared prefix")
    yield replace(behind, name="drafter of 2,048, shared, KV short", engine=(CACHING, SHORT))
    yield chosen(few, "batch_size", varied)
    yield chosen(few, "goodput", varied)


def stepped(base: Row, shared: Row) -> Iterator[Row]:
    """Yields what schedules otherwise."""
    for name, field in (
        ("priority", ("policy", "priority")),
        ("long_prefill_token_threshold", ("long_prefill_token_threshold", 512)),
    ):
        yield replace(base, name=name, base=base, engine=(field,))
        yield replace(base, name=f"{name}, asynchronous", base=base, engine=(field, AHEAD))
        yield replace(base, name=f"{name}, KV short", base=base, engine=(field, SHORT))
        yield replace(shared, name=f"{name}, shared prefix", base=shared, engine=(field, CACHING))
    few = ("max_num_batched_tokens", 512)
    usual = replace(base, base=base, ordinary=True)
    yield replace(usual, name="budget of 512", engine=(few,))
    yield replace(shared, name="budget of 512, shared prefix", engine=(few, CACHING), base=shared)
    yield replace(base, name="budget of 2,048", base=base, engine=(("max_num_batched_tokens", 2048),))
    yield replace(
        base, name="trims_drafts_to_max_tokens", base=base, engine=(("trims_drafts_to_max_tokens", True),)
    )
    yield replace(base, name="max_model_len reached", base=base, engine=(("max_model_len", 1252),))
    yield replace(base, name="no chunked prefill", base=base, engine=(("enable_chunked_prefill", False),))
    yield replace(
        base,
        name="reroll_on_reject, KV short",
        base=base,
        speculative=(("reroll_on_reject", True),),
        engine=(SHORT,),
    )
    yield replace(base, name="reserves_max_tokens", base=base, engine=(("reserves_max_tokens", True),))
    yield replace(
        base, name="reserves_max_tokens, KV short", base=base, engine=(("reserves_max_tokens", True), SHORT)
    )
    static = (("reserves_max_tokens", True), ("static_batching", True))
    yield replace(base, name="static_batching", base=base, engine=static)
    yield replace(base, name="cuts_prompts_at_blocks", base=base, engine=(("cuts_prompts_at_blocks", True),))
    reserved = (("reserves_max_tokens", True), CACHING)
    yield replace(shared, name="reserves_max_tokens, shared prefix", base=shared, engine=reserved)


def sessions(base: Row) -> Iterator[Row]:
    """Yields sessions of eight turns."""
    talk = replace(base, name="sessions", sessions=8, engine=(CACHING,))
    usual = replace(talk, base=talk, ordinary=True)
    yield replace(usual, name="sessions, KV short", engine=(CACHING, SHORT))
    yield replace(usual, name="sessions, KV very short", engine=(CACHING, TIGHT))
    yield replace(usual, name="sessions, KV short, asynchronous", engine=(CACHING, SHORT, AHEAD))
    for name in USUAL:
        yield chosen(talk, name, talk)
        yield chosen(replace(talk, name="sessions, KV short", engine=(CACHING, SHORT)), name, talk)


def windows(base: Row) -> Iterator[Row]:
    """Yields models with sliding windows."""
    layout = KvLayout(window_tokens=512, window_per_1024=512, sequence_slots=0)
    wide = replace(base, name="windows", engine=(("sliding_window", 512), ("kv_layout", layout)))
    for name in USUAL:
        yield chosen(wide, name, wide)
        few = replace(wide, name="windows, KV short", engine=(*wide.engine, SHORT))
        yield chosen(few, name, wide)
    yield replace(wide, name="windows, KV short", base=wide, ordinary=True, engine=(*wide.engine, SHORT))


def deployed(base: Row) -> Iterator[Row]:
    """Yields several replicas, and loads that are not a closed loop."""
    four = replace(
        base, name="four replicas", users=4 * base.users, requests=8000, deployment=DeploymentConfig(4)
    )
    balanced = DeploymentConfig(4, "least_outstanding")
    yield replace(four, name="least_outstanding", base=four, ordinary=True, deployment=balanced)
    yield replace(four, name="four ranks in lockstep", base=four, deployment=DeploymentConfig(4, lockstep=4))
    for name in USUAL:
        yield chosen(replace(four, deployment=balanced), name, replace(four, deployment=balanced))
    yield replace(base, name="arrivals, capped", base=base, ordinary=True, rate=12.0)
    yield replace(base, name="max_num_seqs 64", base=base, ordinary=True, engine=(("max_num_seqs", 64),))
