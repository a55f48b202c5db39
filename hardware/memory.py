"""What fits: the KV pool that an engine finds after weights, activations and graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specfleet.hardware.hybrid import draft_layers, kinds_of, pool_shape
from specfleet.hardware.kvbudget import GIB, KvBudget, Line
from specfleet.hardware.memorypeak import (
    activation_bytes,
    cudagraph_bytes,
    drafter_weight_bytes,
    forward_peak_bytes,
    non_torch_bytes,
    sampler_peak_bytes,
    weight_bytes,
)
from specfleet.hardware.model import ModelSpec
from specfleet.hardware.pipeline.stages import layers_by_stage
from specfleet.hardware.placement import Placement

__all__ = ["GIB", "DoesNotFit", "KvBudget", "MemoryGiven", "kv_budget", "kv_bytes_per_token"]


MOST_GIB = 1e6
"""Of one GPU."""


class DoesNotFit(ValueError):  # noqa: N818 - reads as the verdict it is
    """Not one KV block is left; the message is the whole budget."""


@dataclass(frozen=True, kw_only=True)
class MemoryGiven:
    """Figures of a start-up log, in bytes a GPU, in place of the rules; None leaves a rule in place.

    `device` is the memory that the driver reports, `weights` what loading took (drafter included),
    `activation` the profiling peak, `non_torch` the memory beyond torch, `available` the KV pool itself,
    which leaves no place for the terms before it.
    """

    device: int | None = None
    weights: int | None = None
    activation: int | None = None
    non_torch: int | None = None
    available: int | None = None

    def __post_init__(self) -> None:
        """Reject figures that no log shows."""
        for key in ("device", "weights", "activation", "non_torch", "available"):
            value = getattr(self, key)
            if value is not None and value < (1 if key in ("device", "available") else 0):
                raise ValueError(f"memory.{key} is {value} bytes; give the size that the log shows")
        if self.available is not None and (self.weights, self.activation, self.non_torch) != (None,) * 3:
            raise ValueError(
                "memory.available is the KV pool itself; leave out weights, activation and non_torch, or it"
            )

    @classmethod
    def gib(cls, **sizes: float | None) -> MemoryGiven:
        """The same in GiB, as engines print it: `MemoryGiven.gib(device=79.19, weights=14.99)`.

        Raises ValueError for a size beyond any machine's.
        """
        for key, size in sizes.items():
            if size is not None and not abs(size) <= MOST_GIB:
                raise ValueError(f"memory.{key} is {size:g} GiB; at most {MOST_GIB:g}")
        return cls(**{key: None if size is None else round(size * GIB) for key, size in sizes.items()})


def kv_budget(
    placement: Placement,
    *,
    given: MemoryGiven | None = None,
    max_model_len: int | None = None,
    num_gpu_blocks_override: int | None = None,
    kv_cache_memory_bytes: int | None = None,
) -> KvBudget:
    """Size the KV pool of one GPU as the engine does at start.

    `pool = utilization x device - weights - drafter - activations - beyond torch (- graphs)`, in whole
    blocks; TensorRT-LLM's share is of what the other terms leave. `given` replaces terms. `max_model_len`
    matters only to builds that profile a prompt of that length. `kv_cache_memory_bytes` replaces the pool,
    `num_gpu_blocks_override` the number of blocks, both without any other check, as in vLLM. Of stages
    the one with the fewest blocks decides, and its budget is returned. Raises DoesNotFit, with the budget,
    when less than one block is left.
    """
    given = given or MemoryGiven()
    if placement.pipeline_parallel_size > 1 and placement.stage is None:
        return _tightest(
            placement,
            [
                kv_budget(
                    stage,
                    given=given,
                    max_model_len=max_model_len,
                    num_gpu_blocks_override=num_gpu_blocks_override,
                    kv_cache_memory_bytes=kv_cache_memory_bytes,
                )
                for stage in placement.stages
            ],
        )
    block_bytes = placement.block_size * pool_shape(placement).bytes_per_slot
    if num_gpu_blocks_override is not None:
        return _budget(placement, (), num_gpu_blocks_override * block_bytes, given)
    fixed = kv_cache_memory_bytes if kv_cache_memory_bytes is not None else given.available
    lines = () if fixed is not None else _budget_lines(placement, given, max_model_len)
    pool = fixed if fixed is not None else lines[0][1] - sum(value for _, value in lines[1:])
    budget = _budget(placement, lines, pool, given)
    if budget.num_gpu_blocks < 1:
        raise DoesNotFit(
            f"{_what(placement)} does not fit on {placement.tensor_parallel_size} x "
            f"{placement.accelerator.name}: no KV block is left. Use more GPUs, fp8 weights, a smaller "
            f"max_num_seqs or max_num_batched_tokens, or a higher gpu_memory_utilization.\n{budget.render()}"
        )
    return budget


def _what(placement: Placement) -> str:
    """The model, or the stage of it, in words."""
    if placement.stage is None:
        return placement.model.name
    return f"stage {placement.stage + 1} of {placement.pipeline_parallel_size} of {placement.model.name}"


def _tightest(placement: Placement, budgets: list[KvBudget]) -> KvBudget:
    """The budget of the stage with the fewest blocks, and a line on each."""
    least = min(range(len(budgets)), key=lambda stage: budgets[stage].num_gpu_blocks)
    counts = layers_by_stage(placement.model.num_layers, len(budgets))
    said = []
    for stage, (budget, layers) in enumerate(zip(budgets, counts, strict=True)):
        fixed = dict(budget.lines)
        weights = sum(size for label, size in budget.lines if "weights" in label)
        room = (
            f", weights {weights / GIB:.2f} GiB, KV cache {fixed['KV cache'] / GIB:.2f} GiB"
            if weights
            else ""
        )
        fewest = ", the fewest: what all have" if stage == least else ""
        said.append(f"stage {stage + 1}: {layers} layers{room}, {budget.num_gpu_blocks:,} blocks{fewest}")
    return replace(budgets[least], stages=tuple(said))


def kv_bytes_per_token(placement: Placement) -> int:
    """Bytes that one token holds on one GPU: the target's layers and the drafter's."""
    dtype = placement.kv_cache_dtype
    target = placement.model.kv_bytes_per_token(dtype, placement.tensor_parallel_size)
    if placement.drafter is None:
        return target
    if placement.profile.scheduler == "sglang":
        return pool_shape(placement).bytes_per_slot
    return target + placement.drafter.kv_bytes_per_token(dtype, placement.draft_tensor_parallel_size)


def _kinds(placement: Placement) -> tuple[str, ...]:
    """What each kind of layer keeps, in words."""
    dtype, drafter = placement.kv_cache_dtype, placement.drafter
    lines = kinds_of(placement.model, dtype, placement.tensor_parallel_size)
    if drafter is None or drafter.model is None:
        return lines
    own = kinds_of(drafter.model, dtype, placement.draft_tensor_parallel_size)
    return (*lines, *(f"drafter: {line}" for line in own))


def kv_factors(placement: Placement) -> str:
    """The same as a product, in words: `2 x 32 layers x 8 KV heads x 128 x 2 B`, drafter added."""
    element = placement.kv_element_bytes
    text = _factors(placement.model, placement.tensor_parallel_size, element)
    drafter = placement.drafter
    if drafter is None or drafter.model is None:
        return text
    if placement.profile.scheduler == "sglang":
        return f"{text} x (1 + {draft_layers(placement)} / {placement.model.num_layers})"
    return f"{text} + drafter {_factors(drafter.model, placement.draft_tensor_parallel_size, element)}"


def _factors(model: ModelSpec, tp: int, element: int) -> str:
    layers = f"{model.num_layers} layer{'s' if model.num_layers > 1 else ''}"
    if model.kv_lora_rank:
        return f"{layers} x {model.kv_lora_rank + model.qk_rope_head_dim} latent x {element} B"
    heads = model.kv_heads(tp)
    return f"2 x {layers} x {heads} KV head{'s' if heads > 1 else ''} x {model.head_dim} x {element} B"


def _budget(placement: Placement, lines: tuple[Line, ...], pool: int, given: MemoryGiven) -> KvBudget:
    shape = pool_shape(placement)
    sglang = placement.profile.scheduler == "sglang"  # has no page that is never handed out
    device = _figure(given.device, placement.accelerator.hbm_bytes)
    return KvBudget(
        lines=(*lines, ("KV cache", pool)),
        device_bytes=device if lines else None,
        bytes_per_token=shape.bytes_per_slot,
        block_size=placement.block_size,
        num_gpu_blocks=max(0, pool // (placement.block_size * shape.bytes_per_slot)),
        factors="" if shape.mixed or placement.model.stack else kv_factors(placement),
        null_block_is_reserved=placement.profile.memory.null_block_is_reserved and not sglang,
        prints_tokens_by_request=placement.profile.memory.prints_tokens_by_request,
        shape=shape if shape.mixed else None,
        kinds=_kinds(placement) if shape.mixed or placement.model.stack else (),
    )


def _budget_lines(placement: Placement, given: MemoryGiven, max_model_len: int | None) -> tuple[Line, ...]:
    """What the engine may use, then everything that it must subtract.

    A given peak includes the CUDA graphs, as the engine's own figure does.
    """
    share = placement.gpu_memory_utilization
    device = _figure(given.device, placement.accelerator.hbm_bytes)
    weights, drafter = weight_bytes(placement), drafter_weight_bytes(placement)
    of_the_rest = placement.profile.scheduler == "trtllm"  # its share is of what is free in the end
    lines = [(f"usable ({share:g} of {device / GIB:.2f} GiB)", int(share * device))]
    if of_the_rest:
        lines = [("device", device)]
    if given.weights is not None:
        lines.append(("weights (given)", _figure(given.weights, weights + drafter)))
    else:
        lines.append(("weights", weights))
        if placement.drafter is not None:
            lines.append(("drafter weights", drafter))
    if placement.profile.scheduler == "sglang":
        # activations and graphs come out of what the share leaves
        label = "beyond torch: context, NCCL" if given.non_torch is None else "beyond torch (given)"
        return (*lines, (label, _figure(given.non_torch, non_torch_bytes(placement))))
    peak = activation_bytes(placement, max_model_len)
    label = _peak_label(placement, max_model_len) if given.activation is None else "activations (given)"
    lines.append((label, _figure(given.activation, peak)))
    label = "beyond torch: context, NCCL" if given.non_torch is None else "beyond torch (given)"
    lines.append((label, _figure(given.non_torch, non_torch_bytes(placement))))
    if placement.profile.deducts_cudagraphs and given.activation is None:
        lines.append(("CUDA graphs (estimate)", cudagraph_bytes(placement)))
    if of_the_rest:
        free = max(0, lines[0][1] - sum(value for _, value in lines[1:]))
        lines.append((f"left free (1 - {share:g} of the rest)", free - int(share * free)))
    return tuple(lines)


def _figure(given: int | None, rule: int) -> int:
    """A given size. One that is printed to 0.01 GiB and agrees with the rule is the rule's, unrounded."""
    if given is None:
        return rule
    printed = round(round(given / GIB, 2) * GIB)
    agrees = abs(given - printed) <= 1 and round(rule / GIB, 2) == round(given / GIB, 2)
    return rule if agrees else given


def _peak_label(placement: Placement, max_model_len: int | None) -> str:
    """Which of the two profiled peaks is the larger."""
    sampler = sampler_peak_bytes(placement, max_model_len) > forward_peak_bytes(placement, max_model_len)
    return f"activations (peak: {'sampler' if sampler else 'forward pass'})"
