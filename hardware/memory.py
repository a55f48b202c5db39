"""What fits: the KV pool that an engine finds after weights, activations and graphs."""

from __future__ import annotations

from dataclasses import dataclass

from hardware.placement import Placement

GIB = 2**30
_LABEL_WIDTH = 34


class DoesNotFit(ValueError):  # noqa: N818 - reads as the verdict it is
    """Not one KV block is left; the message is the whole budget."""


@dataclass(frozen=True)
class KvBudget:
    """Memory of one GPU, line by line in bytes, and the pool that comes out.

    `num_gpu_blocks` counts vLLM's null block, as its log does; `tokens` is blocks x block size.
    """

    lines: tuple[tuple[str, int], ...]
    bytes_per_token: int
    block_size: int
    num_gpu_blocks: int

    @property
    def tokens(self) -> int:
        """Tokens that the pool holds."""
        return self.num_gpu_blocks * self.block_size

    def max_concurrency(self, max_model_len: int) -> float:
        """Requests of full length that fit at once, in blocks as vLLM counts them."""
        blocks = -(-max_model_len // self.block_size)
        return self.num_gpu_blocks / blocks

    def render(self, max_model_len: int | None = None) -> str:
        """The budget as text, ending in vLLM's own start-up lines (the second one needs `max_model_len`)."""
        table = [f"{label:<{_LABEL_WIDTH}}{value / GIB:9.2f} GiB" for label, value in self.lines]
        table.append(f"{'KV bytes per token and GPU':<{_LABEL_WIDTH}}{self.bytes_per_token:9,} B")
        table.append(f"GPU KV cache size: {self.tokens:,} tokens")
        if max_model_len is not None:
            factor = self.max_concurrency(max_model_len)
            table.append(f"Maximum concurrency for {max_model_len:,} tokens per request: {factor:.2f}x")
        return "\n".join(table)


def kv_budget(
    placement: Placement,
    *,
    num_gpu_blocks_override: int | None = None,
    kv_cache_memory_bytes: int | None = None,
) -> KvBudget:
    """Size the KV pool of one GPU as the engine does at start.

    `pool = utilization x memory - weights - drafter - activations (- graphs)`, in whole blocks.
    `kv_cache_memory_bytes` replaces the pool, `num_gpu_blocks_override` the number of blocks, both without
    any other check, as in vLLM. Raises DoesNotFit, with the budget, when less than one block is left.
    """
    lines = _budget_lines(placement)
    pool = lines[0][1] - sum(value for _, value in lines[1:])
    if kv_cache_memory_bytes is not None:
        lines, pool = [], kv_cache_memory_bytes
    block_bytes = placement.block_size * kv_bytes_per_token(placement)
    blocks = max(0, pool // block_bytes)
    if num_gpu_blocks_override is not None:
        blocks = num_gpu_blocks_override
        lines, pool = [], blocks * block_bytes
    lines.append(("KV cache", pool))
    budget = KvBudget(tuple(lines), kv_bytes_per_token(placement), placement.block_size, blocks)
    if blocks < 1:
        raise DoesNotFit(
            f"{placement.model.name} does not fit on {placement.tensor_parallel_size} x "
            f"{placement.accelerator.name}: no KV block is left. Use more GPUs, fp8 weights, a smaller "
            f"max_num_seqs or max_num_batched_tokens, or a higher gpu_memory_utilization.\n{budget.render()}"
        )
    return budget


def kv_bytes_per_token(placement: Placement) -> int:
    """Bytes that one token holds on one GPU: the target's layers and the drafter's."""
    dtype = placement.kv_cache_dtype
    target = placement.model.kv_bytes_per_token(dtype, placement.tensor_parallel_size)
    if placement.drafter is None:
        return target
    return target + placement.drafter.kv_bytes_per_token(dtype, placement.draft_tensor_parallel_size)


def activation_bytes(placement: Placement) -> int:
    """Peak of the profiling run beyond the weights.

    `n0 + max(2 b (5 I / TP + h), 4 s max_num_seqs V)`: the forward pass over the token budget b (MLP width I,
    hidden size h, two bytes), or the sampler's float32 copies of a max_num_seqs x vocabulary tensor, s = 9.3
    without and 13.2 with speculation. Reproduces nine measured pools within 2 %; n0 is the host's (profile).
    """
    model, profile = placement.model, placement.profile
    width = 5 * model.intermediate_size / placement.tensor_parallel_size + model.hidden_size
    forward = 2 * placement.max_num_batched_tokens * width
    speculates = placement.drafter is not None
    copies = profile.sampler_copies_with_speculation if speculates else profile.sampler_copies
    sampler = 4 * copies * placement.max_num_seqs * model.vocab_size
    return profile.base_bytes(placement.tensor_parallel_size) + round(max(forward, sampler))


def cudagraph_bytes(placement: Placement) -> int:
    """Memory of the captured graphs: a constant per captured size and layer, drafter layers included.

    An estimate within about a factor of two: see `cudagraph_bytes_per_layer_and_size` of the engine profile.
    """
    drafter = placement.drafter
    layers = placement.model.num_layers + (drafter.model.num_layers if drafter and drafter.model else 0)
    return len(placement.capture_sizes) * layers * placement.profile.cudagraph_bytes_per_layer_and_size


def _budget_lines(placement: Placement) -> list[tuple[str, int]]:
    """What the engine may use, then everything that it must subtract."""
    tp, share = placement.tensor_parallel_size, placement.gpu_memory_utilization
    usable = int(share * placement.accelerator.hbm_bytes)
    lines = [
        (f"usable ({share:g} of {placement.accelerator.hbm_bytes / GIB:.2f} GiB)", usable),
        ("weights", placement.model.weight_bytes(placement.quantization, tp)),
    ]
    if placement.drafter is not None:
        lines.append(
            ("drafter weights", placement.drafter.weight_bytes(placement.draft_tensor_parallel_size))
        )
    lines.append(("activations and sampler", activation_bytes(placement)))
    if placement.profile.deducts_cudagraphs:
        lines.append(("CUDA graphs (estimate)", cudagraph_bytes(placement)))
    return lines
