"""From blocks of one validated point to what a run needs of each: placement, memory, engine, requests."""

from __future__ import annotations

import dataclasses
import math
from functools import lru_cache

from specfleet.experiments.point.acceptance_specs import acceptance_spec
from specfleet.experiments.point.beyond import at_drafts
from specfleet.experiments.point.graphs import draft_tiers, with_graphs
from specfleet.experiments.point.mixes import Laws, laws, mix_of
from specfleet.experiments.point.recorded import recorded_requests, replayed_requests
from specfleet.experiments.point.sessions import session_spec, with_thought
from specfleet.experiments.point.sglang import sglang_config
from specfleet.experiments.point.trtllm import capacity_rules
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.acceptance import processes
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.memory import given as given_memory
from specfleet.experiments.schema.blocks.serve import Serve, SpeculativeConfig
from specfleet.experiments.schema.blocks.workload import NUM_PROMPTS, PerConcurrency, Workload
from specfleet.experiments.schema.pools import longest_of
from specfleet.experiments.schema.registry import OWN
from specfleet.hardware.engine_profile import EngineProfile
from specfleet.hardware.memory import KvBudget, kv_budget
from specfleet.hardware.model import DrafterSpec
from specfleet.hardware.placement import Placement
from specfleet.hardware.sglang.defaults import max_running_requests, max_running_requests_with_drafts
from specfleet.sim import config as sim_config
from specfleet.sim.config import ON_HOST
from specfleet.sim.kvlayout import KvLayout
from specfleet.sim.source import Source, Table
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.sim.speculation.spec import AcceptanceSpec
from specfleet.sim.speculation.trees import TreeSpec
from specfleet.workloads.arrivals import open_loop
from specfleet.workloads.build import Purpose, RequestStream, WorkloadSpec, build_requests, stream
from specfleet.workloads.build_classes import class_requests
from specfleet.workloads.build_sessions import session_requests
from specfleet.workloads.classes import mixed
from specfleet.workloads.phases import Phase
from specfleet.workloads.rates import RateArrivals
from specfleet.workloads.requests import RequestTable

SCHEDULER_RULES = (
    "lookahead_at_admission",
    "pads_one_token_admission",
    "trims_drafts_to_max_tokens",
    "prefix_hash_covers_next_token",
    "spares_lone_long_prefill",
    "skips_unused_drafts",
    "charges_draft_slots",
)
"""Fields that an engine profile and `EngineConfig` share."""


def placement(serve: Serve) -> Placement:
    """Returns what the engine runs on; raises ValueError when the parts do not go together."""
    speculative = serve.speculative_config
    model = lookups.model(serve.model)
    return _placed(
        model,
        lookups.accelerator(serve.gpu),
        with_graphs(lookups.engine(serve.engine), serve),
        tensor_parallel_size=serve.tensor_parallel_size,
        drafter=drafter(speculative) if speculative else None,
        num_speculative_tokens=(speculative.num_speculative_tokens or 0) if speculative else 0,
        draft_pass_tokens=tree.pass_tokens if speculative and (tree := drafted_tree(serve)) else (),
        draft_tiers=draft_tiers(serve, policy_spec(serve)),
        draft_tensor_parallel_size=speculative.draft_tensor_parallel_size if speculative else None,
        data_parallel_size=serve.data_parallel_size,
        expert_parallel_size=serve.expert_ranks,
        pipeline_parallel_size=serve.pipeline_parallel_size,
        async_scheduling=serve.async_scheduling,
        max_num_seqs=serve.max_num_seqs,
        max_num_batched_tokens=serve.max_num_batched_tokens,
        gpu_memory_utilization=serve.gpu_memory_utilization,
        quantization=serve.quantization,
        dtype=serve.dtype,
        kv_cache_dtype=(
            model.checkpoint_kv_cache_dtype if serve.kv_cache_dtype == "auto" else serve.kv_cache_dtype
        ),
        block_size=serve.block_size or 16,
    )


def drafted_tree(serve: Serve) -> TreeSpec | None:
    """Returns the tree of a resolved `serve` block, None for a chain."""
    if serve.draft_tree is None:
        return None
    assert serve.draft_tree.paths is not None, "defaults write every form out as paths"
    return TreeSpec(serve.draft_tree.paths)


def pool(serve: Serve) -> KvBudget:
    """Returns the KV pool of an engine; raises DoesNotFit when it has no block."""
    return _budget(
        placement(serve),
        given=given_memory(serve.memory),
        max_model_len=serve.max_model_len,
        num_gpu_blocks_override=serve.num_gpu_blocks_override,
        kv_cache_memory_bytes=serve.kv_cache_memory_bytes,
    )


_placed, _budget = lru_cache(maxsize=256)(Placement.of), lru_cache(maxsize=256)(kv_budget)
"""Kept, since a point is checked, priced and built with the same ones, and many points share them."""


def drafter(speculative: SpeculativeConfig) -> DrafterSpec:
    """Returns the drafter of a speculative_config."""
    if speculative.method in ON_HOST:
        return lookups.drafter(speculative.method)
    assert speculative.model is not None, "the rules ask for a drafter model"
    spec = lookups.drafter(speculative.model)
    if speculative.quantization == "fp8" and spec.method == "draft_model" and spec.model is not None:
        stored = dataclasses.replace(spec.model, checkpoint_quantization="fp8")
        quantized = dataclasses.replace(stored, fp8_scales_by_block=False)  # made by the engine
        spec = dataclasses.replace(spec, model=quantized)
    if speculative.parallel_drafting is not None and speculative.parallel_drafting != spec.parallel_drafting:
        spec = dataclasses.replace(spec, parallel_drafting=speculative.parallel_drafting)
    return spec


def kv_layout(budget: KvBudget) -> KvLayout | None:
    """Returns what a sequence holds of a pool that several kinds of layers share; None: a slot a token."""
    shape = budget.shape
    if shape is None:
        return None
    return KvLayout(shape.window_tokens, shape.window_per_1024, shape.sequence_slots)


def engine_config(
    serve: Serve, profile: EngineProfile, budget: KvBudget, ignore_eos: bool = False
) -> sim_config.EngineConfig:
    """Returns the scheduler's limits and rules for a resolved `serve` block.

    Args:
        serve: the block.
        profile: its engine.
        budget: of its KV pool. SGLang has no block that is never handed out.
        ignore_eos: requests are known to write exactly what they ask for, which SGLang's estimates use.
    """
    sglang, ahead = profile.scheduler == "sglang", profile.pipeline_runs_ahead
    assert serve.max_num_seqs and serve.max_num_batched_tokens and serve.max_model_len and serve.block_size
    speculative = serve.speculative_config
    model = lookups.model(serve.model)
    drafting = None
    if speculative is not None:
        assert speculative.method is not None and speculative.num_speculative_tokens
        drafting = sim_config.SpeculativeConfig(
            speculative.method,
            speculative.num_speculative_tokens,
            drafter_max_model_len=speculative.max_model_len,
            parallel_drafting=bool(speculative.parallel_drafting),
            reroll_on_reject=serve.reroll_on_reject,
            draft_depth=tree.depth if (tree := drafted_tree(serve)) else None,
        )
    return sim_config.EngineConfig(
        max_num_seqs=serve.max_num_seqs,
        max_num_batched_tokens=serve.max_num_batched_tokens,
        num_gpu_blocks=budget.num_gpu_blocks + 1 if sglang else budget.num_gpu_blocks,
        block_size=serve.block_size,
        max_model_len=serve.max_model_len,
        enable_prefix_caching=serve.enable_prefix_caching,
        enable_chunked_prefill=serve.enable_chunked_prefill,
        long_prefill_token_threshold=serve.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=serve.long_prefill_token_threshold_adaptive,
        policy=serve.scheduling_policy,
        watermark=serve.watermark,
        async_scheduling=bool(serve.async_scheduling) and (ahead or serve.pipeline_parallel_size == 1),
        scheduler_reserve_full_isl=bool(serve.scheduler_reserve_full_isl),
        speculative=drafting,
        sliding_window=model.reach,
        pipeline_parallel_size=serve.pipeline_parallel_size,
        kv_layout=None if sglang else kv_layout(budget),
        sglang=sglang_config(serve, drafted_tree(serve), ignore_eos) if sglang else None,
        **capacity_rules(serve.capacity_scheduler_policy),
        **{rule: getattr(profile, rule) for rule in SCHEDULER_RULES},
    )


def automatic_requests(serve: Serve) -> int:
    """Returns the requests that SGLang runs at once by itself, a rank of DP attention its share.

    Raises:
        ValueError: when model, GPU, drafter and settings do not go together.
    """
    if serve.speculative_config is not None:
        return max_running_requests_with_drafts(serve.data_parallel_size)
    if serve.max_model_len is None:
        raise ValueError("max_model_len is not known, for the model is not")
    return max_running_requests(pool(serve).tokens, serve.max_model_len)


def policy_spec(serve: Serve) -> PolicySpec | None:
    """Returns how K is chosen while running; None is always num_speculative_tokens."""
    speculative = serve.speculative_config
    if speculative is None:
        return None
    if speculative.num_speculative_tokens_per_batch_size is not None:
        k = speculative.num_speculative_tokens or 0
        asked = speculative.num_speculative_tokens_per_batch_size
        capped = tuple((low, high, min(drafts, k)) for low, high, drafts in asked)
        return PolicySpec("batch_size", {"schedule": capped})
    if speculative.enable_adaptive_verification:
        return PolicySpec("adaptive_verification")
    chosen = serve.draft_policy.chosen if serve.draft_policy else None
    if chosen is None:
        return None
    name, parameters = chosen
    if ("policy", name) in OWN:
        return PolicySpec(name, parameters)
    limit_ms = parameters.pop("tpot_ms", None)
    if isinstance(limit_ms, int | float):
        parameters["tpot_s"] = limit_ms / 1e3
    return PolicySpec(name, parameters)


def policy_of(config: Experiment) -> PolicySpec | None:
    """As `policy_spec`; a K by class that is the same for all classes of the workload is one K for all."""
    found = policy_spec(config.serve)
    if found is None or found.name != "by_class":
        return found
    speculative = config.serve.speculative_config
    most = (speculative.num_speculative_tokens or 0) if speculative else 0
    ks = set(drafts_by_class(config).values())
    if ks == {most}:
        return None
    if len(ks) > 1:
        return found
    assert config.serve.max_num_seqs, "defaults are filled in"
    return PolicySpec("batch_size", {"schedule": ((1, config.serve.max_num_seqs, ks.pop()),)})


def drafts_by_class(config: Experiment) -> dict[str, int]:
    """Returns the K of each traffic class of a point whose K is static or by class."""
    speculative, policy = config.serve.speculative_config, config.serve.draft_policy
    k = (speculative.num_speculative_tokens or 0) if speculative else 0
    own = (policy.by_class or {}) if policy else {}
    return {name: min(own.get(name, k), k) for name in class_names_of(config.workload)}


def class_names_of(workload: Workload) -> tuple[str, ...]:
    """Returns the traffic classes of a workload, in the order of `class_id`."""
    named = [phase.traffic_class for phase in workload.phases or ()]
    return tuple(dict.fromkeys(named)) or tuple(workload.mix or ("default",))


def turn_classes(workload: Workload) -> dict[str, int] | None:
    """Returns the traffic classes whose requests are turns of sessions, with their `class_id`; None where all
    requests are turns, or none is."""
    if not workload.alone:
        return None if workload.has_sessions else {}
    return {name: place for place, name in enumerate(workload.classes) if workload.of_class(name).in_sessions}


def acceptance_specs(config: Experiment) -> dict[str, AcceptanceSpec]:
    """Returns the acceptance process of each traffic class; empty without speculation."""
    speculative = config.serve.speculative_config
    if speculative is None:
        return {}
    k = speculative.num_speculative_tokens or 0
    if speculative.rejection_sample_method == "synthetic":
        if speculative.synthetic_acceptance_rates is not None:
            return {"": AcceptanceSpec.synthetic_rates(speculative.synthetic_acceptance_rates)}
        assert speculative.synthetic_acceptance_length is not None
        return {"": AcceptanceSpec.synthetic_length(speculative.synthetic_acceptance_length, k)}
    tree = drafted_tree(config.serve)
    by_rank = config.serve.draft_tree.by_rank if config.serve.draft_tree else None
    return {
        name: dataclasses.replace(acceptance_spec(at_drafts(process, config)), tree=tree, by_rank=by_rank)
        for name, process in processes(config.acceptance).items()
    }


def client_config(config: Experiment) -> sim_config.ClientConfig:
    """Returns the client's delays in seconds."""
    names = ("send", "receive", "turn", "send_serial", "chunk")
    return sim_config.ClientConfig(*(getattr(config.client, f"{name}_ms") / 1e3 for name in names))


def requests_asked(workload: Workload, asked: int | PerConcurrency | None) -> int:
    """Returns a number of requests; a number per concurrency needs `max_concurrency`."""
    if isinstance(asked, PerConcurrency):
        assert workload.max_concurrency, "the rules ask for max_concurrency"
        return max(asked.per_concurrency * workload.max_concurrency, asked.min)
    return asked or 0


def counted_requests(workload: Workload) -> int:
    """Returns the requests of a synthetic workload that count; of one that goes on, of a first look."""
    if workload.phases is not None:
        warmups = requests_asked(workload, workload.num_warmups)
        return sum(phase.num_prompts for phase in workload.phases) - warmups
    if workload.arrivals is not None and workload.num_prompts is None:
        return workload.requests_of_span
    if workload.replayed and workload.num_prompts is None:
        return _until_a_trace_ends(workload)
    return requests_asked(workload, workload.num_prompts or (NUM_PROMPTS if workload.goes_on else None))


def _until_a_trace_ends(workload: Workload) -> int:
    """Requests that count until the first trace ends; as many as by default where others rules object."""
    try:
        every = replayed_requests(workload, None)
    except (ValueError, OSError):
        return NUM_PROMPTS
    return max(every - requests_asked(workload, workload.num_warmups), 1)


def _phases(workload: Workload) -> tuple[Phase, ...]:
    """The stretches of a workload that changes, each with its rate."""
    default = math.inf if workload.request_rate is None else workload.request_rate
    return tuple(
        Phase(phase.num_prompts, phase.request_rate or default, phase.traffic_class)
        for phase in workload.phases or ()
    )


def workload_spec(workload: Workload, max_model_len: int | None = None) -> WorkloadSpec:
    """Returns the synthetic workload of a block without a trace; `max_model_len` as in `mix_of`."""
    mix = mix_of(workload, max_model_len)
    if mix is None:
        found = laws(workload)
    else:
        found = Laws(mixed(mix.classes, "input"), mixed(mix.classes, "output"), 0.0, None)
    prefix = workload.prefix if mix is None else None
    shares = {} if mix is not None else workload.mix or {}
    return WorkloadSpec(
        num_prompts=counted_requests(workload),
        num_warmups=requests_asked(workload, workload.num_warmups),
        input=found.prompt,
        output=found.output,
        rank_correlation=found.rank_correlation,
        max_tokens=found.max_tokens,
        ignore_eos=workload.ignore_eos,
        request_rate=workload.request_rate or workload.rate_of_classes or math.inf,
        burstiness=workload.gap_shape,
        prefix_tokens=prefix.tokens if prefix else 0,
        prefix_groups=prefix.groups if prefix else 1,
        temperature=workload.temperature,
        class_mix=tuple((name, each) for name, each in shares.items() if isinstance(each, float)),
        phases=_phases(workload),
        curve=workload.curve,
        mix=mix,
    )


def requests(config: Experiment, seed: int) -> RequestTable:
    """Returns the requests of a point; the same for every K and GPU at the same seed."""
    workload = config.workload
    longest = longest_of(config)
    assert longest
    return with_thought(_requests(workload, longest, seed), workload, seed)


def _requests(workload: Workload, max_model_len: int, seed: int) -> RequestTable:
    """Returns the requests of a workload, but for the pauses that its users make."""
    if workload.trace is not None:
        return _timed(workload, max_model_len, seed)
    spec = workload_spec(workload, max_model_len)
    if workload.alone:
        return class_requests(spec, seed)
    if workload.sessions is not None:
        return session_requests(spec, session_spec(workload.sessions, max_model_len), seed)
    return build_requests(spec, seed)


def _timed(workload: Workload, max_model_len: int, seed: int) -> RequestTable:
    """Returns the rows of a trace at their own times, or at those asked for."""
    table = recorded_requests(workload, max_model_len)
    if workload.num_prompts is not None:
        table = table.head(
            requests_asked(workload, workload.num_warmups) + requests_asked(workload, workload.num_prompts)
        )
    if workload.request_rate is None:
        return table
    rng, curve, begins = stream(seed, Purpose.ARRIVAL), workload.curve, table.turn == 0
    units = int(begins.sum())
    share = units / max(len(table), 1)
    if curve is None:
        arrivals = open_loop(units, workload.request_rate * share, workload.gap_shape, rng)
    else:
        arrivals = RateArrivals(curve.scaled(share), workload.gap_shape, rng).take(units)
    return dataclasses.replace(table, arrival_s=arrivals[begins.cumsum() - 1])


def source(config: Experiment, seed: int) -> Source:
    """Returns the requests of a point as something that gives them in portions; equal to `requests`."""
    workload = config.workload
    single = not workload.has_sessions and not workload.replayed and not workload.thinks
    if workload.trace is None and single:
        return RequestStream(workload_spec(config.workload, longest_of(config)), seed)
    return Table(requests(config, seed))
