"""What a rule about several values says."""

from __future__ import annotations

from dataclasses import dataclass

from specfleet.experiments.schema.yamlfile import KeyPath


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
