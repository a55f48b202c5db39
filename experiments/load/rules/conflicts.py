"""Rules about several values at once, checked on every point of the grid after its defaults are filled in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec

from specfleet.experiments.load.defaults import longest_of
from specfleet.experiments.load.rules.autoscale import coming_conflicts
from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.load.rules.failures import failure_conflicts
from specfleet.experiments.load.rules.gateway import gateway_conflicts
from specfleet.experiments.load.rules.handover import handover_conflicts
from specfleet.experiments.load.rules.memory import running_conflicts
from specfleet.experiments.load.rules.own import own_conflicts
from specfleet.experiments.load.rules.parallel import parallel_conflicts, stage_conflicts
from specfleet.experiments.load.rules.patience import patience_conflicts
from specfleet.experiments.load.rules.plan import slo_conflicts
from specfleet.experiments.load.rules.report import summary_conflicts
from specfleet.experiments.load.rules.sessions import session_conflicts
from specfleet.experiments.load.rules.sglang import is_sglang, sglang_conflicts
from specfleet.experiments.load.rules.sizes import size_conflicts
from specfleet.experiments.load.rules.slow import slow_conflicts
from specfleet.experiments.load.rules.speculation import speculation_conflicts
from specfleet.experiments.load.rules.trtllm import trtllm_conflicts
from specfleet.experiments.load.rules.workload import workload_conflicts
from specfleet.experiments.point.mixes import each_class
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.lookups import found
from specfleet.sim.config import ON_HOST


def conflicts(config: Experiment, longest: int | None = None) -> Iterator[Conflict]:
    """Everything wrong with a filled point that no single value shows.

    Whether it fits in memory is asked only of a point that makes sense.

    Args:
        config: the point, or one pool of it.
        longest: tokens of the longest request that some pool holds; None where all replicas are alike.
    """
    found_any = False
    for conflict in _without_running(config):
        found_any |= not conflict.vain
        yield conflict
    if found_any:
        return
    for conflict in size_conflicts(config):
        found_any = True
        yield conflict
    if not found_any:
        yield from running_conflicts(config, longest)
        yield from summary_conflicts(config)


def _without_running(config: Experiment) -> Iterator[Conflict]:
    """Rules about names and values."""
    yield from _names(config)
    for rule in (
        _cost_model,
        sglang_conflicts,
        trtllm_conflicts,
        parallel_conflicts,
        stage_conflicts,
        _token_budget,
        _model_fit,
        _kv_cache,
    ):
        yield from rule(config.serve)
    yield from speculation_conflicts(config)
    yield from own_conflicts(config)
    yield from slow_conflicts(config)
    yield from coming_conflicts(config)
    yield from gateway_conflicts(config)
    yield from failure_conflicts(config)
    yield from handover_conflicts(config)
    yield from workload_conflicts(config)
    yield from session_conflicts(config)
    yield from patience_conflicts(config)
    yield from slo_conflicts(config)


def _names(config: Experiment) -> Iterator[Conflict]:
    """Every catalogue name must be known, and every inline mapping sound."""
    serve, speculative = config.serve, config.serve.speculative_config
    looked_up: list[tuple[str, Callable[[], object]]] = [
        ("serve.engine", lambda: lookups.engine(serve.engine)),
        ("serve.model", lambda: lookups.model(serve.model)),
        ("serve.gpu", lambda: lookups.accelerator(serve.gpu)),
    ]
    if speculative and speculative.model is not None and speculative.method not in (None, *ON_HOST):
        named = speculative.model
        looked_up.append(("serve.speculative_config.model", lambda: lookups.drafter(named)))
    for block, workload in each_class(config.workload).values():
        if (name := workload.preset) is not None:
            looked_up.append((f"{block}.preset", partial(lookups.preset, name)))
    for key, find in looked_up:
        try:
            find()
        except ValueError as error:
            yield Conflict.at(str(error), key)


def _cost_model(serve: Serve) -> Iterator[Conflict]:
    """The optional cost model needs its package."""
    if serve.cost_model == "aiconfigurator" and find_spec("aiconfigurator_core") is None:
        message = "needs a package that is not installed: pip install 'specfleet[measured]', or use kernels"
        yield Conflict.at(message, "serve.cost_model")


def _token_budget(serve: Serve) -> Iterator[Conflict]:
    """vLLM's own checks of `max_num_batched_tokens`."""
    budget, seqs, longest = serve.max_num_batched_tokens, serve.max_num_seqs, serve.max_model_len
    if is_sglang(serve):
        return  # prompts and decodes have no common budget
    if budget is not None and seqs is not None and budget < seqs:
        yield Conflict.at(
            f"{budget} tokens in a step are fewer than max_num_seqs, {seqs}; raise it to at least {seqs}",
            "serve.max_num_batched_tokens",
            "serve.max_num_seqs",
        )
    if serve.capacity_scheduler_policy in ("GUARANTEED_NO_EVICT", "STATIC_BATCH"):
        return  # requests with longer prompts are refused, one by one
    if not serve.enable_chunked_prefill and budget is not None and longest is not None and budget < longest:
        yield Conflict.at(
            f"without chunked prefill a prompt of max_model_len, {longest} tokens, must fit in one step of "
            f"{budget}; raise it to {longest}, or set enable_chunked_prefill: true",
            "serve.max_num_batched_tokens",
            "serve.max_model_len",
            "serve.enable_chunked_prefill",
        )


def _model_fit(serve: Serve) -> Iterator[Conflict]:
    """What the model's shape allows."""
    model = found(lambda: lookups.model(serve.model))
    if model is None:
        return
    tp, longest = serve.tensor_parallel_size, serve.max_model_len
    if model.num_heads % tp:
        sizes = ", ".join(str(n) for n in range(1, 17) if model.num_heads % n == 0)
        yield Conflict.at(
            f"{tp} GPUs cannot share the {model.num_heads} attention heads of {model.name}; use one of "
            f"{sizes}",
            "serve.tensor_parallel_size",
            "serve.model",
        )
    limit = longest_of(model, serve.engine)
    if longest is not None and longest > limit:
        yield Conflict.at(
            f"{longest} is beyond the {limit} positions of {model.name}; use at most {limit}",
            "serve.max_model_len",
            "serve.model",
        )


def _kv_cache(serve: Serve) -> Iterator[Conflict]:
    """Two ways round the memory model exclude each other."""
    if serve.num_gpu_blocks_override is not None and serve.kv_cache_memory_bytes is not None:
        yield Conflict.at(
            "both num_gpu_blocks_override and kv_cache_memory_bytes are given; keep one",
            "serve.kv_cache_memory_bytes",
            "serve.num_gpu_blocks_override",
        )
