"""What a rule about several values says, and whose scheduler it is about."""

from __future__ import annotations

from dataclasses import dataclass

from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.lookups import found
from specfleet.experiments.schema.yamlfile import KeyPath

VLLM_ALONE = {
    "scheduling_policy": "fcfs",
    "long_prefill_token_threshold": 0,
    "watermark": 0.0,
}
"""Settings that no scheduler but vLLM's has, and the values with which they say nothing to it."""


def scheduler_of(serve: Serve) -> str | None:
    """Whose scheduler decides, as engine profiles name it; None where there is no such engine."""
    profile = found(lambda: lookups.engine(serve.engine))
    return None if profile is None else profile.scheduler


@dataclass(frozen=True)
class Conflict:
    """Values that do not go together.

    Args:
        paths: the keys that take part, the one to blame first.
        message: what is wrong; what to do.
    """

    paths: tuple[KeyPath, ...]
    message: str

    @classmethod
    def at(cls, message: str, *keys: str) -> Conflict:
        """A conflict between dotted keys, the one to blame first."""
        return cls(tuple(tuple(key.split(".")) for key in keys), message)
