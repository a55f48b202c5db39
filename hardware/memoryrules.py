"""How an engine build sizes its KV pool: what it profiles, what it deducts, what it prints."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class MemoryRules:
    """The memory part of an engine profile; sizes in bytes, widths in multiples of a model dimension.

    The profiling run is one forward pass over the token budget, then one call of the sampler over
    `max_num_seqs` rows of logits. A token of the forward pass holds `forward_mlp_widths` MLP widths and
    `forward_hidden_widths` hidden widths of two bytes; the pass holds `forward_bytes` beside. The sampler
    holds `sampler_copies` float32 copies of the logits (`..._with_speculation` with a drafter), a buffer of
    one row of logits per SM where `sampler_row_per_sm` (the Triton top-k kernel), and `sampler_bytes`.
    `persistent_copies` copies stay allocated (penalty counters).

    Builds before `always_chunked` profile a prompt of `max_model_len` tokens up to `unchunked_up_to` tokens
    of length, and above it a chunk of `chunk_tokens` without the sampler.

    Memory beyond torch (context growth, NCCL, workspaces) is `non_torch_bytes` on one GPU,
    `non_torch_tensor_parallel_bytes` on several, where GPUs reach each other `non_torch_peer_bytes` a GPU
    of the group more.

    `null_block_is_reserved`: the check of `max_model_len` leaves out the block that is never given away.
    `windows_in_full`: layers with a window keep every token, as without vLLM's hybrid KV cache manager.
    `prints_tokens_by_request`: the printed size is concurrency x max_model_len, not blocks x block size.
    """

    forward_mlp_widths: float
    forward_hidden_widths: float
    forward_bytes: int
    sampler_copies: float
    sampler_copies_with_speculation: float
    sampler_row_per_sm: bool
    sampler_bytes: int
    persistent_copies: float
    non_torch_bytes: int
    non_torch_tensor_parallel_bytes: int
    non_torch_linked_bytes: int
    non_torch_peer_bytes: int
    null_block_is_reserved: bool
    prints_tokens_by_request: bool
    windows_in_full: bool = False
    unchunked_up_to: int = 0
    chunk_tokens: int = 0

    def __post_init__(self) -> None:
        """Reject sizes below 0 and half a rule about chunks."""
        for item in fields(self):
            if getattr(self, item.name) < 0:
                raise ValueError(f"memory.{item.name} is {getattr(self, item.name)}; it cannot be negative")
        if bool(self.unchunked_up_to) != bool(self.chunk_tokens):
            raise ValueError("memory.unchunked_up_to and memory.chunk_tokens: give both, or neither")

    def copies(self, *, speculates: bool) -> float:
        """Float32 copies of the logits at the sampler's peak."""
        return self.sampler_copies_with_speculation if speculates else self.sampler_copies
