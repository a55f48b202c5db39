"""The `serve:` block, spelled as in `vllm serve`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from specfleet.experiments.flags.mtp import ALIASES
from specfleet.experiments.schema.blocks.base import (
    MOST_DRAFTS,
    MOST_TOKENS,
    Block,
    CountOrNone,
    Fraction,
    Named,
    Tokens,
)
from specfleet.experiments.schema.blocks.memory import Memory
from specfleet.experiments.schema.blocks.own import CostModelName
from specfleet.experiments.schema.blocks.policy import DraftPolicy
from specfleet.experiments.schema.blocks.sglang import Sglang
from specfleet.experiments.schema.blocks.tree import DraftTree
from specfleet.experiments.schema.yamlfile import Value, whole

MOST_BLOCKS = 10_000_000
"""Of the KV pool of one GPU."""

Gpus: TypeAlias = Annotated[int, Field(ge=1, le=1024)]

Method: TypeAlias = Literal[
    "eagle3", "eagle", "mtp", "dflash", "dspark", "draft_model", "medusa", "ngram", "suffix"
]
"""The drafting methods that are simulated; `ngram_gpu` and the family names of `mtp` are read as these."""


class SpeculativeConfig(Block):
    """vLLM's `--speculative-config`, every field of it, as a mapping or as the JSON text unchanged.

    Fields that cannot change a prediction are accepted and noted; fields that would, and are not modelled,
    are refused (`rules_speculation.py` has both lists).
    """

    method: Method | None = None
    """How drafts are made; inferred from `model` where vLLM's inference is unambiguous."""
    model: Named | None = None
    """The drafter: catalogue name, Hugging Face id or inline mapping; none for ngram."""
    num_speculative_tokens: Annotated[int, Field(ge=0, le=MOST_DRAFTS)] | None = None
    """Drafts a round (K). 0, which vLLM refuses, means no drafter is loaded."""
    draft_tensor_parallel_size: Gpus | None = None
    """1 or the target's; the target's if left out."""
    max_model_len: Tokens | None = None
    """Positions of the drafter, its own if left out. vLLM 0.33: a head drafts at any length, a shorter draft
    model lowers `serve.max_model_len`. Older builds: no drafts where the longest sequence + K exceeds it."""
    prompt_lookup_max: Tokens | None = None
    """Longest n-gram looked up (ngram); 5 if both are left out."""
    prompt_lookup_min: Tokens | None = None
    """Shortest n-gram looked up (ngram)."""
    parallel_drafting: bool | None = None
    """All K drafts in one drafter pass (P-EAGLE, PARD); as the drafter was made if left out."""
    rejection_sample_method: Literal["standard", "synthetic", "block", "fly"] = "standard"
    """`synthetic` takes the acceptance from the next two fields: no spread between requests."""
    synthetic_acceptance_rates: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = None
    """P(first i drafts all accepted), i = 1 .. K."""
    synthetic_acceptance_length: Annotated[float, Field(ge=1, le=1 + MOST_DRAFTS)] | None = None
    """Mean tokens a round, 1 .. K + 1."""
    draft_sample_method: Literal["greedy", "probabilistic"] = "greedy"
    """How the drafter picks its tokens; only greedy is modelled."""
    num_speculative_tokens_per_batch_size: tuple[tuple[CountOrNone, ...], ...] | None = None
    """(lowest batch, highest batch, K) triples: K by the number of scheduled requests, at most
    num_speculative_tokens; a gap and what lies beyond keep the K before them."""
    quantization: str | None = None
    """Of the drafter's weights: fp8 for a draft model; otherwise as the drafter was published."""
    kv_cache_dtype: str | None = None
    """Of the drafter; only the target's."""
    enforce_eager: bool | None = None
    """Drafter without CUDA graphs; not modelled."""
    disable_padded_drafter_batch: bool = False
    """Not modelled."""
    disable_eagle_block_drop: bool = False
    """Not modelled."""
    use_local_argmax_reduction: bool = False
    """Not modelled."""
    use_heterogeneous_vocab: bool = False
    """Not modelled."""
    enable_adaptive_verification: bool = False
    """Of method dspark: a step verifies, of all requests' drafts, those that its confidence head expects to
    bring most tokens a second. A head that knows less than each request's own acceptance does worse."""
    suffix_decoding_max_tree_depth: int | None = None
    """Of method suffix; not modelled."""
    suffix_decoding_max_cached_requests: int | None = None
    """Of method suffix; not modelled."""
    suffix_decoding_max_spec_factor: float | None = None
    """Of method suffix; not modelled."""
    suffix_decoding_min_token_prob: float | None = None
    """Of method suffix; not modelled."""
    dspark_draft_topk: int | None = None
    """Of method dspark; not modelled."""
    index_share_for_mtp_iteration: bool | None = None
    """Of method mtp; not modelled."""
    disable_lookahead_block_hashes: bool = False
    """Not modelled."""
    draft_lm_head_quantization: str | None = None
    """Not modelled."""
    xpress_topc: int | None = None
    """Not modelled."""
    fly_window_size: int | None = None
    """Of the fly rejection sampler; not modelled."""
    fly_entropy_threshold: float | None = None
    """Of the fly rejection sampler, which is refused; no effect here."""
    fly_entropy_top_k: int | None = None
    """Of the fly rejection sampler, which is refused; no effect here."""
    moe_backend: str | None = None
    """No effect here."""
    attention_backend: str | None = None
    """No effect here."""
    revision: str | None = None
    """No effect here."""
    code_revision: str | None = None
    """No effect here."""
    draft_load_config: dict[str, object] | None = None
    """No effect here."""


def from_json(value: Value) -> Value:
    """The mapping that a JSON text holds, lists as tuples; anything but text as it is.

    ValueError says what is wrong with the text: no JSON, no mapping, or a key given twice.
    """
    if not isinstance(value, str):
        return _as_spelled_here(value)
    try:
        found = json.loads(value, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON mapping; write {...}")
    return _as_spelled_here(_tuples(found))


def _as_spelled_here(value: Value) -> Value:
    """A speculative config with dashes as underscores, and other names of a method by its own, as in vLLM."""
    if not isinstance(value, dict):
        return value
    plain = {key.replace("-", "_"): child for key, child in value.items()}
    found = plain if len(plain) == len(value) else dict(value)
    method = found.get("method")
    if method in ALIASES:
        found["method"] = "mtp"
    elif method == "ngram_gpu":
        found["method"] = "ngram"
    return found


def _unique_keys(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    """A JSON object. ValueError for a key given twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{twice} is given twice; keep one")
    return found


def _tuples(value: object) -> Value:
    """JSON's lists as the tuples that YAML's sequences are."""
    if isinstance(value, dict):
        return {whole(key): _tuples(child) for key, child in value.items()}
    if isinstance(value, list):
        return tuple(_tuples(child) for child in value)
    assert value is None or isinstance(value, bool | int | float | str)
    return whole(value) if isinstance(value, str) else value


def _mapping_or_json(value: Value) -> Value:
    """`from_json` with the fault that pydantic expects."""
    try:
        return from_json(value)
    except ValueError as error:
        raise PydanticCustomError("json", "{what}", {"what": str(error)}) from None


Speculation: TypeAlias = Annotated[SpeculativeConfig | None, BeforeValidator(_mapping_or_json)]


class Serve(Block):
    """One engine replica; what is null is decided by the engine profile and written to resolved.yaml."""

    engine: str = "vllm-0.33"
    """Engine profile: graph ladder, asynchronous scheduling, host cost, memory rules."""
    model: Named
    """The target: catalogue name, Hugging Face id or inline mapping."""
    quantization: Literal["fp8"] | None = None
    """Of the weights; null keeps them in `dtype`."""
    dtype: Literal["bfloat16", "float16"] = "bfloat16"
    """Activations, and weights that are not quantized."""
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    """`auto` stores the KV cache in `dtype`."""
    gpu: Named
    """The accelerator: catalogue name or mapping, such as {base: h100-sxm, hbm_bytes_per_s: 2.4e12}."""
    tensor_parallel_size: Gpus = 1
    data_parallel_size: Gpus = 1
    """Ranks with tensor_parallel_size GPUs, requests and a KV pool of their own that share the experts of a
    mixture and step together. Of a dense model they are as many deployment.replicas."""
    pipeline_parallel_size: Gpus = 1
    """Stages that hold the layers in turn, tensor_parallel_size GPUs each; as many batches are under way."""
    enable_expert_parallel: bool = False
    """Whole experts on each GPU of all ranks, in place of a part of every expert."""
    expert_parallel_size: Gpus | None = None
    """Groups of GPUs with experts of their own, where that is not all or none of them (SGLang's ep_size)."""
    gpu_memory_utilization: Fraction | None = None
    """Share of the GPU's memory the engine may use."""
    max_model_len: Tokens | None = None
    """Tokens of prompt and output together; the model's own limit if left out."""
    max_num_seqs: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Sequences running at once."""
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=1 << 22)] | None = None
    """Tokens in one step."""
    block_size: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    """Tokens in one KV block; 16 if left out, with SGLang 1, with TensorRT-LLM 32."""
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: Annotated[int, Field(ge=0, le=MOST_TOKENS)] = 0
    """Most prompt tokens of one request in a step; 0 is no limit."""
    long_prefill_token_threshold_adaptive: bool = False
    """That limit is never below an equal share of the budget."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    scheduler_reserve_full_isl: bool | None = None
    """Admit a request only when its whole prompt fits in the KV cache."""
    capacity_scheduler_policy: Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"] | None = None
    """How TensorRT-LLM admits: KV for whole outputs, for the next step, or batch by batch; the first if left
    out. Other engines refuse it."""
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the KV blocks kept free at admission."""
    num_gpu_blocks_override: Annotated[int, Field(ge=2, le=MOST_BLOCKS)] | None = None
    """KV blocks, whatever the memory model says."""
    kv_cache_memory_bytes: Annotated[int, Field(ge=1, le=1 << 50)] | None = None
    """Bytes of KV cache a GPU, whatever the memory model says."""
    memory: Memory | None = None
    """Figures of a start-up log, in place of the memory model's own."""
    cudagraph_capture_sizes: tuple[Annotated[int, Field(ge=1, le=1 << 16)], ...] | None = None
    """Token counts that have a CUDA graph, in place of the profile's ladder."""
    max_cudagraph_capture_size: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    """Largest token count that has a CUDA graph."""
    async_scheduling: bool | None = None
    """Schedule a step before the last one's output is known."""
    draft_policy: DraftPolicy | None = None
    """How K is chosen while running; always num_speculative_tokens if left out. Not vLLM's."""
    draft_tree: DraftTree | None = None
    """A tree of drafts in place of a chain; num_speculative_tokens is then its number of nodes. SGLang's."""
    reroll_on_reject: bool = False
    """Price a second target pass after a rejection: recurrent states that cannot be cut back need it."""
    cost_model: CostModelName = "kernels"
    """`kernels`: measured kernels; `roofline`: datasheet figures, wrong by a factor of about 2;
    `aiconfigurator`: the tables of that package (extra `measured`); one of your own by its name."""
    speculative_config: Speculation = None
    sglang: Sglang | None = None
    """What SGLang's scheduler alone is set up with; for `engine: sglang`."""

    @property
    def expert_ranks(self) -> int:
        """Groups of GPUs that hold experts of their own."""
        everybody = self.tensor_parallel_size * self.data_parallel_size
        return self.expert_parallel_size or (everybody if self.enable_expert_parallel else 1)
