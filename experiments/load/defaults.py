"""Defaults that depend on the catalogue or on other keys; a point with all of them filled in.

Names that the catalogue does not know leave their defaults null: the rules report the name.
"""

from __future__ import annotations

import math

from specfleet.experiments.point.acceptance_specs import written_out
from specfleet.experiments.point.build import automatic_requests
from specfleet.experiments.point.draft_trees import resolved_tree
from specfleet.experiments.point.graphs import decode_graphs
from specfleet.experiments.point.trtllm import DEFAULT_POLICY
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.acceptance import SEEN_CONCENTRATIONS, Process
from specfleet.experiments.schema.blocks.deployment import ReplicaPool
from specfleet.experiments.schema.blocks.experiment import Experiment, Report, Sweep
from specfleet.experiments.schema.blocks.policy import DraftPolicy
from specfleet.experiments.schema.blocks.serve import Method, Serve, SpeculativeConfig
from specfleet.experiments.schema.blocks.sglang import Sglang
from specfleet.experiments.schema.blocks.tree import DraftTree
from specfleet.experiments.schema.blocks.workload import NUM_PROMPTS, PerConcurrency, Workload
from specfleet.experiments.schema.lookups import found
from specfleet.experiments.schema.pools import pool_experiments
from specfleet.experiments.schema.registry import with_defaults
from specfleet.hardware.engine_profile import BLOCK_SIZES, EngineProfile
from specfleet.hardware.heads import reads_target, scales_positions
from specfleet.hardware.model import ModelSpec
from specfleet.hardware.sglang.defaults import SglangDefaults
from specfleet.sim.config import BLOCK_DRAFTERS

WARMUPS_PER_USER = 2
"""Warm-up requests of each user of a closed loop that goes on until it is settled, if nothing is said."""

_IN_THE_PATH: tuple[Method, ...] = ("eagle3", "dflash", "dspark")
"""Methods that vLLM finds in a drafter's path."""

SUFFIX_TREE_DEPTH = 24
"""Most drafts of a round with suffix decoding if nothing is said (vLLM: the depth of its trees)."""

_NGRAM_WINDOW = 5
"""Longest and shortest n-gram looked up if neither is given (vLLM)."""


def filled(config: Experiment) -> Experiment:
    """A point with every default in place.

    Without a drafter (no `speculative_config`, or 0 tokens) there is no `speculative_config` and no
    `acceptance`, so that both spellings give equal points. A point has no axes and nothing to plot.
    """
    deployment = config.deployment
    if deployment.pools:
        own = {name: filled(one) for name, one in pool_experiments(config).items()}
        pools = {name: _pool(pool, own[name]) for name, pool in deployment.pools.items()}
        deployment = deployment.model_copy(update={"pools": pools})
    serve = _with_tree(_serve(config.serve), config.acceptance)
    k = serve.speculative_config.num_speculative_tokens if serve.speculative_config else None
    return config.model_copy(
        update={
            "serve": serve,
            "acceptance": _acceptance(config, k),
            "deployment": deployment,
            "workload": _workload(config.workload, config.report.requests == "none"),
            "sweep": Sweep(),
            "report": Report(requests=config.report.requests),
            "claim": None,
            "plan": None,
        }
    )


def _pool(given: ReplicaPool, config: Experiment) -> ReplicaPool:
    """A pool with every key of its engine and its acceptance written out."""
    said: dict[str, object] = {"serve": config.serve.model_dump(), "acceptance": config.acceptance}
    return given.model_copy(update=said)


def inferred_method(speculative: SpeculativeConfig) -> Method | None:
    """vLLM's inference of `method` from the drafter's name, where the catalogue agrees with it; else None."""
    if speculative.method or not isinstance(speculative.model, str):
        return speculative.method
    name = speculative.model
    if name in ("ngram", "[ngram]"):
        return "ngram"
    if name == "suffix":
        return "suffix"
    drafter = found(lambda: lookups.drafter(name))
    guess: Method = "draft_model"
    if "eagle-" in name.lower():
        guess = "eagle"
    else:
        guess = next((m for m in _IN_THE_PATH if m in name.lower()), guess)
    return guess if drafter is not None and drafter.method == guess else None


def _serve(serve: Serve) -> Serve:
    """Engine, model and drafter defaults; a drafter of 0 tokens is none."""
    speculative = serve.speculative_config
    if speculative is not None and speculative.num_speculative_tokens == 0:
        speculative = None
    model = found(lambda: lookups.model(serve.model))
    max_model_len = serve.max_model_len
    if max_model_len is None and model is not None:
        max_model_len = longest_of(model, serve.engine)
    if speculative is not None:
        any_length = drafts_at_any_length(serve.engine)
        speculative = _speculative(_of_the_target(speculative, serve), serve.tensor_parallel_size)
        speculative, max_model_len = _reaching(speculative, max_model_len, any_length)
    update: dict[str, object] = {"speculative_config": speculative, "max_model_len": max_model_len}
    if serve.draft_policy is not None:
        update["draft_policy"] = _policy(serve.draft_policy)
    if speculative is None:
        update |= {"draft_policy": None, "draft_tree": None}
    serve = serve.model_copy(update=update)
    return _engine(serve)


def _policy(given: DraftPolicy) -> DraftPolicy:
    """A policy of the user's own gets its constructor's defaults."""
    own = {name: with_defaults("policy", name, parameters) for name, parameters in given.own.items()}
    return given.model_copy(update=own)


def _with_tree(serve: Serve, acceptance: Process | dict[str, Process] | None) -> Serve:
    """The tree written out as paths, and num_speculative_tokens, if left out, as its number of nodes.

    What cannot be written out stays as it was: the rules say why.
    """
    block, speculative = serve.draft_tree, serve.speculative_config
    if block is None or speculative is None or len(block.given) != 1:
        return serve
    if block.max_depth is not None and block.optimal is None:
        return serve
    tree = found(lambda: resolved_tree(block, acceptance))
    if tree is None:
        return serve
    speculative = speculative.model_copy(
        update={"num_speculative_tokens": speculative.num_speculative_tokens or tree.num_nodes}
    )
    written = DraftTree(paths=tree.paths, by_rank=block.by_rank)
    update: dict[str, object] = {"draft_tree": written, "speculative_config": speculative}
    if block.sglang is not None and serve.sglang is not None:
        drafted = {
            "speculative_num_steps": serve.sglang.speculative_num_steps or block.sglang.steps,
            "speculative_eagle_topk": serve.sglang.speculative_eagle_topk or block.sglang.topk,
        }
        update["sglang"] = serve.sglang.model_copy(update=drafted)
    return serve.model_copy(update=update)


def _engine(serve: Serve) -> Serve:
    """What the engine profile decides.

    As vLLM: without chunked prefill the token budget grows to the longest prompt, and the default number of
    sequences never exceeds the budget.
    """
    profile = found(lambda: lookups.engine(serve.engine))
    if profile is None:
        return serve
    if serve.block_size is None:
        serve = serve.model_copy(update={"block_size": BLOCK_SIZES[profile.scheduler]})
    if profile.scheduler == "sglang":
        return _sglang(serve, profile)
    method = serve.speculative_config.method if serve.speculative_config else None
    gpu = found(lambda: lookups.accelerator(serve.gpu))
    most_seqs, most_tokens = profile.max_num_seqs, profile.max_num_batched_tokens
    if gpu is not None:
        most_seqs, most_tokens = profile.limits(gpu)
    budget = serve.max_num_batched_tokens
    if budget is None:
        budget = most_tokens
        if not serve.enable_chunked_prefill and not _reserves(serve, profile):
            budget = max(budget, serve.max_model_len or 0)
    decided: dict[str, object] = {
        "gpu_memory_utilization": profile.gpu_memory_utilization,
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(most_seqs, budget),
        "scheduler_reserve_full_isl": profile.scheduler_reserve_full_isl,
        "async_scheduling": profile.schedules_async(method),
    }
    if profile.scheduler == "trtllm":
        decided["capacity_scheduler_policy"] = DEFAULT_POLICY
    missing = {key: value for key, value in decided.items() if getattr(serve, key) is None}
    return serve.model_copy(update=missing)


def _reserves(serve: Serve, profile: EngineProfile) -> bool:
    """Whether nobody who has started is ever thrown out, so that no step computes more than a prompt."""
    policy = serve.capacity_scheduler_policy or DEFAULT_POLICY
    return profile.scheduler == "trtllm" and policy != "MAX_UTILIZATION"


def longest_of(model: ModelSpec, engine: str) -> int:
    """Returns the longest sequence of a model by default, as the engine build resolves it."""
    profile = found(lambda: lookups.engine(engine))
    return model.longest(profile.yarn_lengthens if profile else False)


def _sglang(serve: Serve, profile: EngineProfile) -> Serve:
    """What SGLang decides by itself, by GPU and tensor parallelism, and from the pool.

    Without chunks a batch may hold as much as the longest prompt.
    """
    gpu, model = found(lambda: lookups.accelerator(serve.gpu)), found(lambda: lookups.model(serve.model))
    speculative, settings = serve.speculative_config, serve.sglang or Sglang()
    decided: dict[str, object] = {
        "sglang": settings,
        "scheduler_reserve_full_isl": profile.scheduler_reserve_full_isl,
        "async_scheduling": profile.schedules_async(speculative.method if speculative else None),
    }
    if gpu is not None:
        dp = serve.data_parallel_size
        given = serve.max_num_batched_tokens
        automatic = SglangDefaults(
            gpu.hbm_bytes,
            serve.tensor_parallel_size * dp,
            dp,
            chunk=(given and given * dp) if serve.enable_chunked_prefill else 0,
            max_prefill_tokens=settings.max_prefill_tokens,
            latent=model is not None and model.latent,
            graphs=decode_graphs(settings),
        )
        decided |= {
            "gpu_memory_utilization": automatic.mem_fraction_static,
            "max_num_batched_tokens": automatic.chunked_prefill_size,
        }
    if not serve.enable_chunked_prefill:
        decided["max_num_batched_tokens"] = max(settings.max_prefill_tokens, serve.max_model_len or 0)
    missing = {key: value for key, value in decided.items() if getattr(serve, key) is None}
    serve = serve.model_copy(update=missing)
    if serve.max_num_seqs is None:
        most = found(lambda: automatic_requests(serve))
        serve = serve.model_copy(update={"max_num_seqs": most or 4096})
    return serve


def drafts_at_any_length(engine: str) -> bool:
    """Whether an engine build never skips the drafter for long sequences."""
    profile = found(lambda: lookups.engine(engine))
    return profile is not None and profile.drafts_at_any_length


def _of_the_target(given: SpeculativeConfig, serve: Serve) -> SpeculativeConfig:
    """MTP and DSpark without a model: layers of the target's own checkpoint draft."""
    if given.method not in ("mtp", "dspark") or given.model is not None:
        return given
    return given.model_copy(update={"model": {f"{given.method}_for": serve.model}})


def _reaching(
    given: SpeculativeConfig, longest: int | None, any_length: bool
) -> tuple[SpeculativeConfig, int | None]:
    """How far the drafter and the engine reach.

    Builds that draft at any length raise a head's positions to the target's (no limit is left), and lower the
    engine's longest sequence to a shorter draft model's, or to a head's that cannot be raised. The others,
    and heads that draft in parallel, skip drafts beyond the shorter of both limits. A limit that is above
    what the drafter or the target has stays as it is: the rules say so. The target's own length, as files for
    older builds spell it out, is taken.
    """
    named = given.model
    drafter = found(lambda: lookups.drafter(named)) if named is not None else None
    own = drafter.max_model_len if drafter is not None else 0
    known = [limit for limit in (own, longest) if limit]
    limit = given.max_model_len or (min(known) if known else None)
    older = given.parallel_drafting and given.method not in BLOCK_DRAFTERS
    if limit is None or not any_length or drafter is None or older:
        return given.model_copy(update={"max_model_len": limit}), longest
    raised = reads_target(drafter) and not scales_positions(drafter)
    spelled_out = raised and given.max_model_len == longest
    if given.max_model_len and given.max_model_len > min(known) and not spelled_out:
        return given, longest
    if raised:
        return given.model_copy(update={"max_model_len": None}), longest
    return given.model_copy(update={"max_model_len": limit}), limit


def _speculative(given: SpeculativeConfig, tp: int) -> SpeculativeConfig:
    """The drafter's defaults, but for its lengths."""
    named = given.model
    method = inferred_method(given)
    if method == "ngram":
        longest = given.prompt_lookup_max or given.prompt_lookup_min or _NGRAM_WINDOW
        update: dict[str, object] = {
            "method": method,
            "draft_tensor_parallel_size": given.draft_tensor_parallel_size or tp,
            "parallel_drafting": bool(given.parallel_drafting),
            "prompt_lookup_max": longest,
            "prompt_lookup_min": given.prompt_lookup_min or longest,
        }
        if named in ("ngram", "[ngram]"):
            update["model"] = None
        return given.model_copy(update=update)
    if method == "suffix" and given.num_speculative_tokens is None:
        given = given.model_copy(update={"num_speculative_tokens": SUFFIX_TREE_DEPTH})
    if method == "suffix" and named == "suffix":
        given, named = given.model_copy(update={"model": None}), None
    drafter = found(lambda: lookups.drafter(named)) if named is not None else None
    return given.model_copy(
        update={
            "method": method,
            "draft_tensor_parallel_size": given.draft_tensor_parallel_size or tp,
            "parallel_drafting": bool(drafter and drafter.parallel_drafting)
            if given.parallel_drafting is None
            else given.parallel_drafting,
        }
    )


def _acceptance(config: Experiment, k: int | None) -> Process | dict[str, Process] | None:
    """The processes with profiles written out and the K of their measurement, None without a drafter."""
    given = config.acceptance
    if not k or given is None:
        return None
    if isinstance(given, dict):
        return {name: _process(process, k) for name, process in given.items()}
    return _process(given, k)


def _process(given: Process, k: int) -> Process:
    """One process; what depends on K was measured at the point's K unless it says otherwise.

    A process of the user's own gets its constructor's defaults.
    """
    if given.process is not None:
        return given.model_copy(update=with_defaults("acceptance", given.process, given.own))
    given = written_out(given)
    update: dict[str, object] = {}
    if given.measured_at_k is None and (given.acceptance_length or given.draft_acceptance_rate):
        update["measured_at_k"] = k
    if given.spread_unknown:
        update["concentration_range"] = SEEN_CONCENTRATIONS
    elif given.concentration_range is not None and "concentration" not in given.model_fields_set:
        update["concentration"] = given.concentration_range[0]
    return given.model_copy(update=update) if update else given


def _format_of(given: Workload) -> str | None:
    """The format that a trace's keys are of; None where the rules will say why there is none."""
    from specfleet.workloads.traces.formats import detected
    from specfleet.workloads.traces.report import TraceError

    if "columns" in given.trace_asked:
        return "columns"
    try:
        return detected(given.trace_file or "")
    except TraceError:
        return None


def _workload(given: Workload, figures_alone: bool) -> Workload:
    """Where arrivals come from, and how many requests there are; null of a run that goes on by itself."""
    missing: dict[str, object] = {}
    law = given.arrivals
    if law is not None and given.request_rate is None and law.says_rate:
        missing["request_rate"] = law.own_rate_per_s
    if law is not None and law.minutes and given.cv is None and "burstiness" not in given.model_fields_set:
        missing["burstiness"] = law.minutes.burstiness
    if missing:
        given = given.model_copy(update=missing)
    goes_on = given.goes_on and not figures_alone
    if given.num_warmups is None:
        users = goes_on and given.max_concurrency is not None
        missing["num_warmups"] = PerConcurrency(per_concurrency=WARMUPS_PER_USER) if users else 0
    if given.trace is not None:
        missing["trace_format"] = given.trace_format or _format_of(given)
    else:
        if not given.replayed:
            missing["request_rate"] = given.request_rate or given.rate_of_classes or math.inf
        if not given.changes and not goes_on and not given.replayed:
            missing["num_prompts"] = given.num_prompts or NUM_PROMPTS
        if given.preset is None:
            missing["rank_correlation"] = given.rank_correlation or 0.0
    return given.model_copy(update=missing)
