"""Rules about experts and attention spread over ranks, and layers over stages: whose key says what, and for
which models."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.load.rules.sglang import is_sglang
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.lookups import found
from specfleet.hardware.pipeline.links import RELAYED
from specfleet.hardware.pipeline.stages import divisible

STAGES = "serve.pipeline_parallel_size"


def parallel_conflicts(serve: Serve) -> Iterator[Conflict]:
    """Yields what does not go together among `data_parallel_size` and the two keys of expert parallelism."""
    own, other = "serve.expert_parallel_size", "serve.enable_expert_parallel"
    if is_sglang(serve) and serve.enable_expert_parallel:
        yield Conflict.at(
            "is vLLM's; SGLang's is expert_parallel_size (its --ep-size)", other, "serve.engine"
        )
    if not is_sglang(serve) and serve.expert_parallel_size is not None:
        yield Conflict.at(
            "is SGLang's; vLLM's is enable_expert_parallel, all or nothing", own, "serve.engine"
        )
    speculative = serve.speculative_config
    if serve.data_parallel_size > 1 and speculative is not None:
        key = "num_speculative_tokens_per_batch_size"
        if getattr(speculative, key) is not None:
            message = "vLLM reads past it where data_parallel_size is above 1; remove it"
            yield Conflict.at(message, f"serve.speculative_config.{key}", "serve.data_parallel_size")
    model = found(lambda: lookups.model(serve.model))
    if model is not None and not model.num_experts:
        if serve.data_parallel_size > 1:
            message = f"{model.name} has no experts to share; give deployment.replicas"
            yield Conflict.at(message, "serve.data_parallel_size", "serve.model")
        if serve.expert_parallel_size not in (None, 1):
            yield Conflict.at(f"{model.name} has no experts; remove it", own, "serve.model")


def stage_conflicts(serve: Serve) -> Iterator[Conflict]:
    """Yields what does not go together with stages of a pipeline."""
    stages = serve.pipeline_parallel_size
    if stages == 1:
        return
    profile = found(lambda: lookups.engine(serve.engine))
    if profile is not None and profile.scheduler != "vllm":
        yield Conflict.at("stages are simulated under vLLM's scheduler alone", STAGES, "serve.engine")
    if serve.cost_model != "kernels":
        yield Conflict.at(
            f"stages are priced by kernels, not by {serve.cost_model}", STAGES, "serve.cost_model"
        )
    if serve.data_parallel_size > 1:
        message = (
            "ranks that share the experts of each stage are not simulated: they would wait for each other on "
            "every stage, with several batches under way; use one of the two, or deployment.replicas of "
            "pipelines that share nothing"
        )
        yield Conflict.at(message, STAGES, "serve.data_parallel_size")
    if serve.reroll_on_reject:
        yield Conflict.at("a second pass through stages is not simulated", "serve.reroll_on_reject", STAGES)
    if serve.memory is not None:
        for key in ("weights_gib", "activation_gib", "available_gib"):
            if getattr(serve.memory, key) is not None:
                message = "is a figure of one stage, and each has its own; leave it out"
                yield Conflict.at(message, f"serve.memory.{key}", STAGES)
    model = found(lambda: lookups.model(serve.model))
    if model is not None and (why_not := divisible(model, stages)):
        yield Conflict.at(why_not, STAGES, "serve.model")
    yield from _drafts_with_stages(serve, profile is not None and profile.pipeline_runs_ahead)


def _drafts_with_stages(serve: Serve, runs_ahead: bool) -> Iterator[Conflict]:
    """What vLLM takes of drafters with stages: 0.33 keeps them whole on the last one."""
    speculative = serve.speculative_config
    if speculative is None or not speculative.num_speculative_tokens:
        return
    block = "serve.speculative_config"
    if not runs_ahead:
        message = (
            "builds before vllm-0.33 would cut the drafter into stages, too, and refuse one that cannot be; "
            "use engine: vllm-0.33, which keeps it on the last stage"
        )
        yield Conflict.at(message, block, STAGES)
    elif serve.async_scheduling is False:
        message = (
            "drafts with stages are simulated under asynchronous scheduling alone; leave one of them out"
        )
        yield Conflict.at(message, block, STAGES, "serve.async_scheduling")
    if speculative.enable_adaptive_verification:
        yield Conflict.at("vLLM refuses it with stages", f"{block}.enable_adaptive_verification", STAGES)
    model = found(lambda: lookups.model(serve.model))
    if speculative.method in RELAYED and model is not None and (model.num_experts or model.kv_lora_rank):
        message = (
            f"{speculative.method} reads hidden states of earlier stages, which vLLM 0.33 hands on for Llama "
            f"and dense Qwen models alone; {model.name} is refused. Use mtp, ngram or one stage"
        )
        yield Conflict.at(message, block, STAGES, "serve.model")
