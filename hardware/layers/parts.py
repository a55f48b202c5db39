"""What layers are made of: projections with their modules, and what a sequence leaves in the cache."""

from __future__ import annotations

from typing import NamedTuple

Gemm = tuple[int, int]
"""(output width N, input width K) of a projection on one GPU."""


class Part(NamedTuple):
    """One projection as it runs on one GPU, fused where vLLM fuses.

    `modules` are the names under the layer by which a checkpoint's exclusion lists know it (its first is the
    one asked for); `role` names it among the parts of its layer.
    """

    role: str
    columns: int
    depth: int
    modules: tuple[str, ...] = ()

    @property
    def gemm(self) -> Gemm:
        """(N, K)."""
        return self.columns, self.depth

    @property
    def parameters(self) -> int:
        """Weights on this GPU."""
        return self.columns * self.depth


class Cache(NamedTuple):
    """What one layer keeps of a sequence on one GPU.

    `kind` is "full", "sliding", "chunked" (at most `window` tokens each), "latent" or "state". `elements` are
    stored a token in the KV type; `index_bytes` a token beside them whatever the type (keys of an indexer).
    `state_bytes` are held once a sequence, `draft_state_bytes` more with every draft token.
    """

    kind: str
    elements: int = 0
    window: int = 0
    index_elements: int = 0
    index_bytes: int = 0
    state_bytes: int = 0
    draft_state_bytes: int = 0

    def bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of one token while it is within reach."""
        return self.elements * element_bytes + self.index_bytes
