"""Rules about `engine: trtllm`: whose settings go with whose scheduler, and where its own defaults differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specfleet.experiments.load.rules.base import VLLM_ALONE, Conflict, scheduler_of
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import Serve


def is_trtllm(serve: Serve) -> bool:
    """Whether TensorRT-LLM's scheduler decides."""
    return scheduler_of(serve) == "trtllm"


def trtllm_conflicts(serve: Serve) -> Iterator[Conflict]:
    """Settings of another engine, and steps too small for a piece of a prompt."""
    if not is_trtllm(serve):
        if serve.capacity_scheduler_policy is not None:
            message = f"belongs to engine: trtllm, and the engine is {serve.engine}; remove it"
            yield Conflict.at(f"{message}, or change that", "serve.capacity_scheduler_policy", "serve.engine")
        return
    for key, default in VLLM_ALONE.items():
        if getattr(serve, key) != default:
            message = f"is a setting of vLLM's scheduler, and the engine is {serve.engine}; remove it"
            yield Conflict.at(message, f"serve.{key}", "serve.engine")
    budget, block, speculative = serve.max_num_batched_tokens, serve.block_size, serve.speculative_config
    drafts = (speculative.num_speculative_tokens or 0) if speculative is not None else 0
    if serve.enable_chunked_prefill and budget is not None and block and budget < block + drafts + 1:
        yield Conflict.at(
            f"a piece of a prompt is whole KV blocks of {block} tokens, a step has {budget}; give it "
            f"at least {block + drafts + 1}, or set enable_chunked_prefill: false",
            "serve.max_num_batched_tokens",
            "serve.block_size",
        )


def trtllm_notices(experiment: Experiment, points: Iterable[Experiment]) -> Iterator[str]:
    """Where TensorRT-LLM does otherwise by itself, and nobody typed it."""
    typed = "enable_chunked_prefill" in experiment.serve.model_fields_set
    typed |= "serve.enable_chunked_prefill" in experiment.sweep.axes
    if not typed and any(is_trtllm(point.serve) for point in points):
        yield (
            "prompts are cut where a step has no room for them; TensorRT-LLM cuts them only with "
            "enable_chunked_prefill: true. Give it, true or false, as your server has it"
        )
