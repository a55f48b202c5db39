"""Rules about the drafter and its acceptance: `serve.speculative_config` and `acceptance`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import get_args

from specfleet.experiments.load.rules.acceptance import positions, process_conflicts
from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.load.rules.tree import positions_needed, tree_conflicts
from specfleet.experiments.point.build import class_names_of
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.acceptance import processes
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.policy import DraftPolicy
from specfleet.experiments.schema.blocks.serve import Method, Serve, SpeculativeConfig
from specfleet.experiments.schema.faults import did_you_mean
from specfleet.experiments.schema.lookups import found
from specfleet.hardware.heads import reads_target
from specfleet.sim.config import BLOCK_DRAFTERS, ON_HOST, WITHOUT_DRAFT_KV

WITHOUT_EFFECT = (
    *("moe_backend", "attention_backend", "revision", "code_revision", "draft_load_config"),
    *("fly_entropy_threshold", "fly_entropy_top_k"),
)
"""Fields of `speculative_config` that cannot change a prediction."""

NOT_MODELLED = (
    "quantization",
    "kv_cache_dtype",
    "enforce_eager",
    "disable_padded_drafter_batch",
    "disable_eagle_block_drop",
    "use_local_argmax_reduction",
    "use_heterogeneous_vocab",
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
    "dspark_draft_topk",
    "index_share_for_mtp_iteration",
    "disable_lookahead_block_hashes",
    "draft_lm_head_quantization",
    "xpress_topc",
    "fly_window_size",
)
"""Fields of `speculative_config` that would change a prediction and are not modelled: defaults only."""

_HARMLESS = {
    "kv_cache_dtype": ("auto",),
    "enforce_eager": (False,),
    "index_share_for_mtp_iteration": (False,),
    "suffix_decoding_max_tree_depth": (24,),
    "suffix_decoding_max_cached_requests": (10_000,),
    "suffix_decoding_max_spec_factor": (1, 1.0),
    "suffix_decoding_min_token_prob": (0.1,),
}
"""Values that say no more than the default."""

_BLOCK = "serve.speculative_config"


def speculation_conflicts(config: Experiment) -> Iterator[Conflict]:
    """Everything wrong with the drafter and its acceptance in a filled point."""
    speculative = config.serve.speculative_config
    if speculative is not None:
        yield from _unmodelled(speculative)
        yield from _method(speculative, config.serve)
        yield from _drafter(config, speculative)
        yield from _synthetic(config, speculative)
        yield from _policy(config.serve.draft_policy, speculative, class_names_of(config.workload))
        if speculative.enable_adaptive_verification:
            yield from _adaptive(config.serve, speculative)
        yield from tree_conflicts(config)
    by_class = processes(config.acceptance)
    missing = [name for name in class_names_of(config.workload) if name not in by_class]
    if by_class and missing and "" not in by_class:
        message = (
            f"has no process for the traffic class {' and '.join(missing)} of this workload; add it, or give "
            "one process without a class"
        )
        yield Conflict.at(message, "acceptance", "workload.mix")
    sampled = speculative is not None and speculative.draft_sample_method == "probabilistic"
    if sampled and any(process.overlap is None for process in by_class.values()):
        message = (
            "probabilistic drafts differ from greedy ones in acceptance alone; add overlap: {rule: sampled} "
            "to acceptance, or use greedy, vLLM's default"
        )
        yield Conflict.at(message, f"{_BLOCK}.draft_sample_method", "acceptance")
    for name, process in by_class.items():
        block = f"acceptance.{name}" if name else "acceptance"
        needed = positions_needed(config.serve) if config.serve.draft_tree is not None else 0
        yield from process_conflicts(process, speculative, block, needed)


def _by_class(drafts: Mapping[str, int], k: int, classes: Sequence[str]) -> Iterator[Conflict]:
    """Every K by class is of a class that there is, and no more than num_speculative_tokens."""
    here = "serve.draft_policy.by_class"
    for name, own in drafts.items():
        if name not in classes:
            near = did_you_mean(name, list(classes))
            yield Conflict.at(f"{name} is no traffic class of this workload; {near}", here, "workload.mix")
        elif own > k:
            message = (
                f"{own} drafts for {name} are more than num_speculative_tokens, {k}; lower it, or raise that"
            )
            yield Conflict.at(message, here, f"{_BLOCK}.num_speculative_tokens")


def _policy(
    policy: DraftPolicy | None, speculative: SpeculativeConfig, classes: Sequence[str]
) -> Iterator[Conflict]:
    """K while running comes from one place, and never exceeds num_speculative_tokens."""
    k = speculative.num_speculative_tokens or 0
    schedule, key = (
        speculative.num_speculative_tokens_per_batch_size,
        f"{_BLOCK}.num_speculative_tokens_per_batch_size",
    )
    if schedule is not None and speculative.method == "suffix":
        yield Conflict.at("vLLM reads past it with method suffix, and keeps one K; remove it", key)
    if policy is not None and schedule is not None:
        yield Conflict.at("choose K in one place; remove one of the two", key, "serve.draft_policy")
    if policy is not None and policy.chosen is None:
        names = ", ".join(type(policy).model_fields)
        yield Conflict.at(f"must be exactly one of {names}", "serve.draft_policy")
    if policy is not None and policy.by_class is not None:
        yield from _by_class(policy.by_class, k, classes)
    if policy is not None and policy.batch_size is not None:
        schedule, key = policy.batch_size.schedule, "serve.draft_policy.batch_size.schedule"
    own = policy is None
    for entry in schedule or ():
        if len(entry) != 3 or entry[0] < 1 or entry[1] < entry[0] or not (own or 0 <= entry[2] <= k):
            message = (
                f"{list(entry)} is no [lowest batch, highest batch, K] with K from 0 to "
                f"num_speculative_tokens, {k}"
            )
            yield Conflict.at(message, key, f"{_BLOCK}.num_speculative_tokens")
            return
    if own and schedule:
        yield from _ranges(sorted(schedule), key)


def _adaptive(serve: Serve, speculative: SpeculativeConfig) -> Iterator[Conflict]:
    """vLLM's adaptive verification is of one method, chooses by itself, and profiles all its batches."""
    key, k = f"{_BLOCK}.enable_adaptive_verification", speculative.num_speculative_tokens or 0
    if speculative.method not in ("dspark", None):
        message = f"belongs to method dspark, whose head says how sure it is; this is {speculative.method}"
        yield Conflict.at(message, key, f"{_BLOCK}.method")
    others = {
        "serve.draft_policy": serve.draft_policy,
        f"{_BLOCK}.num_speculative_tokens_per_batch_size": speculative.num_speculative_tokens_per_batch_size,
    }
    for other, given in others.items():
        if given is not None:
            yield Conflict.at("choose drafts in one place; remove one of the two", key, other)
    budget, seats = serve.max_num_batched_tokens, serve.max_num_seqs
    if budget and seats and seats * (1 + k) > budget:
        message = (
            f"{seats} requests with {k} drafts each are more tokens than a step has, {budget}, so what they "
            "take is not known; lower max_num_seqs, or raise the budget"
        )
        yield Conflict.at(message, key, "serve.max_num_seqs", "serve.max_num_batched_tokens")


def _ranges(schedule: Sequence[tuple[int, ...]], key: str) -> Iterator[Conflict]:
    """vLLM's own checks of its schedule: the first range starts at 1, none overlaps another."""
    if schedule[0][0] != 1:
        yield Conflict.at(f"the first range starts at {schedule[0][0]}; vLLM wants it to start at 1", key)
    for one, following in pairwise(schedule):
        if following[0] <= one[1]:
            message = f"the ranges {list(one)} and {list(following)} overlap; vLLM refuses that"
            yield Conflict.at(message, key)


def speculation_notices(speculative: SpeculativeConfig) -> Iterator[str]:
    """Fields that were given and change nothing, or whose cost is not priced."""
    older = speculative.parallel_drafting and speculative.method not in BLOCK_DRAFTERS
    if older and speculative.num_speculative_tokens_per_batch_size is not None:
        yield (
            f"{_BLOCK}.num_speculative_tokens_per_batch_size: with parallel drafting vLLM 0.33 takes its old "
            "runner, whose CUDA graphs under a schedule are piecewise; what that costs is not priced (50.0 "
            "tokens/s in place of 59.6 in one report of MTP with one user, vLLM #49548). Its default runner "
            "keeps a full graph for each K"
        )
    for key in WITHOUT_EFFECT:
        if getattr(speculative, key) is not None:
            yield f"{_BLOCK}.{key} has no effect on the prediction"


def _unmodelled(speculative: SpeculativeConfig) -> Iterator[Conflict]:
    """Fields whose effect the simulator lacks must keep their defaults."""
    for key in NOT_MODELLED:
        value = getattr(speculative, key)
        default = SpeculativeConfig.model_fields[key].default
        if key == "quantization" and value == "fp8" and speculative.method == "draft_model":
            continue
        if value != default and value not in _HARMLESS.get(key, ()):
            yield Conflict.at("would change the answer and is not modelled yet; remove it", f"{_BLOCK}.{key}")
    if speculative.rejection_sample_method in ("block", "fly"):
        how = speculative.rejection_sample_method
        message = f"{how} verification is not modelled yet; use standard or synthetic"
        yield Conflict.at(message, f"{_BLOCK}.rejection_sample_method")


def _method(speculative: SpeculativeConfig, serve: Serve) -> Iterator[Conflict]:
    """Method, model, K and n-gram window must fit together, and the engine must have the method."""
    profile = found(lambda: lookups.engine(serve.engine))
    method, model = speculative.method, speculative.model
    if speculative.num_speculative_tokens is None:
        message = "num_speculative_tokens is required; give the number of drafts a round, 0 for no drafter"
        yield Conflict.at(message, _BLOCK, f"{_BLOCK}.num_speculative_tokens")
    if method is None:
        name = model if isinstance(model, str) else "an inline model" if model else "no model"
        yield Conflict.at(
            f"method cannot be inferred safely from {name}; add method: {', '.join(get_args(Method))}",
            _BLOCK,
            f"{_BLOCK}.method",
            f"{_BLOCK}.model",
        )
        return
    if profile is not None and method in profile.gone_methods:
        message = (
            f"{serve.engine} has no method {method} any more; use an older engine, vllm-2026-01, or eagle3"
        )
        yield Conflict.at(message, f"{_BLOCK}.method", "serve.engine")
    ahead = profile is not None and profile.schedules_async(method)
    if method in WITHOUT_DRAFT_KV and serve.async_scheduling and not ahead:
        message = f"{method} drafts cannot be scheduled asynchronously (vLLM refuses it); remove it"
        yield Conflict.at(message, "serve.async_scheduling", f"{_BLOCK}.method")
    if method in ON_HOST and model is not None:
        message = f"method {method} looks drafts up in the text and has no model; remove it"
        yield Conflict.at(message, f"{_BLOCK}.model", f"{_BLOCK}.method")
    yield from _own_layers(speculative, serve)
    if method not in ON_HOST and model is None:
        message = f"method {method} needs a drafter; add model: with its name"
        yield Conflict.at(message, f"{_BLOCK}.method", f"{_BLOCK}.model")
    shortest, longest = speculative.prompt_lookup_min, speculative.prompt_lookup_max
    for key, value in (("prompt_lookup_min", shortest), ("prompt_lookup_max", longest)):
        if method != "ngram" and value is not None:
            message = f"belongs to method ngram, and the method is {method}; remove it"
            yield Conflict.at(message, f"{_BLOCK}.{key}", f"{_BLOCK}.method")
    if method == "ngram" and shortest and longest and shortest > longest:
        message = f"{shortest} is above prompt_lookup_max, {longest}; lower it"
        yield Conflict.at(message, f"{_BLOCK}.prompt_lookup_min", f"{_BLOCK}.prompt_lookup_max")


def _own_layers(speculative: SpeculativeConfig, serve: Serve) -> Iterator[Conflict]:
    """MTP layers are the target's own, unless a drafter with a name of its own has them."""
    named = speculative.model
    if speculative.method != "mtp" or not isinstance(named, dict) or set(named) != {"mtp_for"}:
        return
    of = named["mtp_for"]
    target = found(lambda: lookups.model(of)) if isinstance(of, str | dict) else None
    if target is not None and not target.mtp_layers:
        message = (
            f"{target.name} has no MTP layers to draft with; use another method (eagle3, draft_model, "
            "ngram), or state them where the model is: serve.model: {base: .., mtp_layers: 1}"
        )
        yield Conflict.at(message, f"{_BLOCK}.method", "serve.model")


def _drafter(config: Experiment, speculative: SpeculativeConfig) -> Iterator[Conflict]:
    """The drafter against its target."""
    tp, longest = config.serve.tensor_parallel_size, config.serve.max_model_len
    draft_tp, limit = speculative.draft_tensor_parallel_size, speculative.max_model_len
    if draft_tp is not None and draft_tp not in (1, tp):
        yield Conflict.at(
            f"{draft_tp} is neither 1 nor the target's tensor_parallel_size, {tp}; vLLM takes only these",
            f"{_BLOCK}.draft_tensor_parallel_size",
            "serve.tensor_parallel_size",
        )
    if limit is not None and longest is not None and limit > longest:
        yield Conflict.at(
            f"{limit} is above the target's max_model_len, {longest}; lower it",
            f"{_BLOCK}.max_model_len",
            "serve.max_model_len",
        )
    named = speculative.model
    if named is None or speculative.method in (None, *ON_HOST):
        return
    drafter = found(lambda: lookups.drafter(named))
    profile = found(lambda: lookups.engine(config.serve.engine))
    own = drafter.max_model_len if drafter is not None else 0
    if profile is not None and profile.drafts_at_any_length and limit and own and limit > own:
        advice = (
            "leave it out: the head drafts at any length" if drafter and reads_target(drafter) else "lower it"
        )
        yield Conflict.at(
            f"{limit} is above the {own} positions of the drafter, which vLLM refuses; {advice}",
            f"{_BLOCK}.max_model_len",
            f"{_BLOCK}.model",
        )
    if drafter is not None and drafter.method != speculative.method:
        yield Conflict.at(
            f"{drafter.name} is a drafter for method {drafter.method}, not {speculative.method}; change one",
            f"{_BLOCK}.method",
            f"{_BLOCK}.model",
        )


def _synthetic(config: Experiment, speculative: SpeculativeConfig) -> Iterator[Conflict]:
    """Where the acceptance comes from: the acceptance block, or vLLM's synthetic mode, never both."""
    rates, length = speculative.synthetic_acceptance_rates, speculative.synthetic_acceptance_length
    k = speculative.num_speculative_tokens or 0
    how = f"{_BLOCK}.rejection_sample_method"
    keys = (f"{_BLOCK}.synthetic_acceptance_rates", f"{_BLOCK}.synthetic_acceptance_length")
    if speculative.rejection_sample_method != "synthetic":
        for key, value in zip(keys, (rates, length), strict=True):
            if value is not None:
                yield Conflict.at("needs rejection_sample_method: synthetic; add it", key, how)
        if k and config.acceptance is None:
            message = (
                f"{k} drafts a round and no acceptance: block; add one, for example conditional_acceptance"
            )
            yield Conflict.at(message, f"{_BLOCK}.num_speculative_tokens", "acceptance")
        return
    if config.acceptance is not None:
        message = "rejection_sample_method: synthetic brings its own acceptance; remove one of the two"
        yield Conflict.at(message, "acceptance", how)
    if (rates is None) == (length is None):
        message = "synthetic needs exactly one of synthetic_acceptance_rates and synthetic_acceptance_length"
        yield Conflict.at(message, how, *keys)
    if rates is not None:
        yield from positions(rates, k, keys[0])
    if length is not None and k and length > k + 1:
        message = f"{length:g} tokens a round are more than {k} drafts and one; use at most {k + 1}"
        yield Conflict.at(message, keys[1], f"{_BLOCK}.num_speculative_tokens")
