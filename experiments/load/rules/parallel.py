"""Rules about experts and attention spread over ranks: whose key says what, and for which models."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.load.rules.sglang import is_sglang
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.lookups import found


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
