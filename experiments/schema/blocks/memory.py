"""The `serve.memory:` block: figures of a start-up log in place of the memory model's own."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from specfleet.experiments.schema.blocks.base import Block
from specfleet.hardware.memory import MemoryGiven

MOST_GIB = 1_000_000
"""Of one GPU."""

Gib: TypeAlias = Annotated[float, Field(ge=0, le=MOST_GIB)]


class Memory(Block):
    """What a log of the engine says, in GiB a GPU; what is left out is computed."""

    device_gib: Annotated[float, Field(gt=0, le=MOST_GIB)] | None = None
    """The GPU's memory as the driver reports it: 79.19 on an H100 of 80 GB."""
    weights_gib: Gib | None = None
    """"Model loading took": target and drafter."""
    activation_gib: Gib | None = None
    """Peak of the profiling run beyond the weights; with the CUDA graphs where the engine adds them."""
    non_torch_gib: Gib | None = None
    """Memory beyond torch: context growth, NCCL."""
    available_gib: Annotated[float, Field(gt=0, le=MOST_GIB)] | None = None
    """"Available KV cache memory": the pool itself; the other keys have nothing left to say."""


def given(memory: Memory | None) -> MemoryGiven | None:
    """The same for the memory model, in bytes; None without the block."""
    if memory is None:
        return None
    return MemoryGiven.gib(
        device=memory.device_gib,
        weights=memory.weights_gib,
        activation=memory.activation_gib,
        non_torch=memory.non_torch_gib,
        available=memory.available_gib,
    )
