"""How positions are stretched, and how far that lets a sequence grow."""

from __future__ import annotations

from typing import NamedTuple


class Rope(NamedTuple):
    """What `config.json` says of stretched positions: type, factor, length before stretching (0: unsaid)."""

    kind: str = "default"
    factor: float = 1.0
    original: int = 0

    def longest(self, said: int, yarn_lengthens: bool) -> int:
        """Tokens of the longest sequence that vLLM takes by default of a model of `said` positions.

        Linear and dynamic factors lengthen, llama3 and longrope do not; YaRN did (the length before
        stretching times its factor) until vLLM took the file's word (pull request 56446, September 2026).
        """
        if "yarn" in self.kind:
            return int(self.original * self.factor) if yarn_lengthens and self.original else said
        return int(said * self.factor) if self.kind in ("linear", "dynamic", "ntk") else said


PLAIN_ROPE = Rope()
"""Positions as they are."""
