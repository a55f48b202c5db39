"""CUDA graphs of a `serve:` block: the sizes that the user gives, a set for each K that a policy chooses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.blocks.sglang import Sglang
from specfleet.experiments.schema.registry import OWN
from specfleet.hardware.cudagraph import Tier
from specfleet.hardware.engine_profile import EngineProfile
from specfleet.hardware.sglang.defaults import DecodeGraphs
from specfleet.sim.speculation.policies import BatchSizeSchedule
from specfleet.sim.speculation.policy import PolicySpec

ONE_K_A_BATCH = ("disable_above_queue", "goodput", "adaptive_tiers", "slo_budget", "bandit", "oracle")
"""Policies whose batches may be uniform in any K."""


def with_graphs(profile: EngineProfile, serve: Serve) -> EngineProfile:
    """An engine profile with the CUDA graphs that the user asks for; sizes given are left as they are."""
    if serve.sglang is not None:
        profile = dataclasses.replace(profile, decode_graphs=decode_graphs(serve.sglang))
    sizes, most = serve.cudagraph_capture_sizes, serve.max_cudagraph_capture_size
    if not sizes and most is None:
        return profile
    largest = min(max(sizes or (most or 1,)), most or 1 << 16)
    ladder = tuple((n, n, 1) for n in sorted(set(sizes or ())) if n <= largest)
    beyond = ((256, largest, 16),) if largest > profile.cudagraph_max_tokens else ()
    return dataclasses.replace(
        profile,
        cudagraph_adds_uniform=False,
        cudagraph_ladder=ladder or (*profile.cudagraph_ladder, *beyond),
        cudagraph_max_tokens=largest,
        cudagraph_max_tokens_blackwell=largest,
        cudagraph_tokens_per_sequence=largest,
        cudagraph_counts_sequences=profile.cudagraph_counts_sequences and not sizes,
    )


def decode_graphs(settings: Sglang) -> DecodeGraphs:
    """The decode graphs that an SGLang server is asked for."""
    return DecodeGraphs(settings.cuda_graph_max_bs, tuple(sorted(set(settings.cuda_graph_bs or ()))))


def draft_tiers(serve: Serve, policy: PolicySpec | None) -> tuple[Tier, ...]:
    """Returns, where K changes while running, each 1 + K with graphs of its own and its most requests.

    () where graphs are captured for one K.

    vLLM's law for `num_speculative_tokens_per_batch_size`. Other policies are in no engine: one that chooses
    for the whole batch, or is a user's own, is taken to have graphs for every K, one that chooses request by
    request for the largest alone.
    """
    speculative, requests = serve.speculative_config, serve.max_num_seqs
    if speculative is None or policy is None or requests is None:
        return ()
    most = speculative.num_speculative_tokens or 0
    if policy.name in ONE_K_A_BATCH or ("policy", policy.name) in OWN:
        return tuple((1 + k, requests) for k in range(most + 1))
    schedule = policy.parameters.get("schedule")
    if policy.name != "batch_size" or not isinstance(schedule, Sequence):
        return ()
    chosen = BatchSizeSchedule(most, schedule)
    widest = {1 + chosen.choose(batch, 0, 0): batch for batch in range(1, requests + 1)}
    return tuple(sorted(widest.items()))
