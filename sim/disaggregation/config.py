"""How KV goes from the replicas that compute prompts to those that decode: what a run is told of it."""

from __future__ import annotations

from dataclasses import dataclass

STEPPED = "replicas that hand KV over"
"""Why those that compute prompts for others are stepped."""
PREFILL, DECODE = "prefill", "decode"
"""Roles of a pool."""
AFTER, CHUNKS, LAYERS = "after", "chunks", "layers"
"""When KV is sent: once the prompt is computed; each piece of it when its step has ended; each layer of a
piece when that layer is computed, while the step goes on."""


@dataclass(frozen=True, slots=True)
class HandoverConfig:
    """How the KV of a prompt is handed over.

    Args:
        overlap: `AFTER`, `CHUNKS` or `LAYERS`.
        router: chooses the decode replica; the deployment's own chooses that of the prompt.
        proxy_s: with `AFTER`, from the end of a prompt until the decode replica has the request. Otherwise
            both replicas get it at once.
        setup_s: from when the decode replica has blocks for a prompt until the first byte moves.
        block_bytes: KV bytes of one block, all GPUs of a replica together.
        token_bytes: what else goes along, bytes a prompt token.
        layers: whose KV is sent one after another.
    """

    overlap: str = AFTER
    router: str = "round_robin"
    proxy_s: float = 0.0
    setup_s: float = 0.0
    block_bytes: int = 1
    token_bytes: int = 0
    layers: int = 1

    def bytes_of(self, blocks: int, tokens: int) -> int:
        """Returns the bytes of so many blocks, that hold so many prompt tokens."""
        return blocks * self.block_bytes + tokens * self.token_bytes
