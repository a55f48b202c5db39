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
        vain: the key to blame changes nothing of this point. That is no fault where it does of another one:
            `retries: [0, 1]` may be swept beside a back-off.
    """

    paths: tuple[KeyPath, ...]
    message: str
    vain: bool = False

    @classmethod
    def at(cls, message: str, *keys: str) -> Conflict:
        """A conflict between dotted keys, the one to blame first; a number is a place in a list."""
        return cls(tuple(map(_path, keys)), message)

    @classmethod
    def in_vain(cls, message: str, *keys: str) -> Conflict:
        """A key that says nothing beside the others, as `at`."""
        return cls(tuple(map(_path, keys)), message, vain=True)


def _path(key: str) -> KeyPath:
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))
