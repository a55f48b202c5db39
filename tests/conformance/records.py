"""The fields of a recorded step, and how ours are held against them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

Trace = dict[str, Any]
Step = dict[str, Any]

FIELDS = [
    *("arrived", "new", "resumed", "cached", "preempted", "padded", "tokens", "rows", "finished"),
    *("free_after_schedule", "free_end", "num_running", "num_waiting"),
]
DETAIL_FIELDS = ["state_end", "running_order", "waiting_order", "sched_rows"]
SGLANG_DETAIL_FIELDS = ["ntr", "ntr_end", "chunked", "full", "running", "waiting", "kv_end"]
SPARSE: dict[str, list[int]] = {"padded": []}
"""Fields left out of a step when empty."""
SAMPLED = 3
"""Where a row says how many tokens it samples."""


@dataclass
class Differences:
    """What ours and theirs do not agree on.

    Attributes:
        steps: compared.
        wrong: mismatches by field; `truncated` where one goes on and the other does not.
        lines: a line for each.
    """

    steps: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)

    @property
    def decisive(self) -> int:
        """Mismatches outside state and order."""
        return self.wrong.total() - self.detail

    @property
    def detail(self) -> int:
        """Mismatches of state and order."""
        return sum(self.wrong[name] for name in (*DETAIL_FIELDS, *SGLANG_DETAIL_FIELDS))

    def note(self, name: str, line: str) -> None:
        """Counts one."""
        self.wrong[name] += 1
        self.lines.append(line)

    def add(self, other: Differences) -> None:
        """Adds those of another trace."""
        self.steps += other.steps
        self.wrong += other.wrong
        self.lines += other.lines


def differences(
    trace: Trace, ours: Iterable[Step], in_part: bool = False, fields: Iterable[str] | None = None
) -> Differences:
    """Compares steps with those of a trace, field by field as far as the trace has them.

    Args:
        trace: with what was recorded.
        ours: from the first step on, and beyond the last if we go on then.
        in_part: ours may end before theirs.
        fields: those compared; None: vLLM's.
    """
    names = [*FIELDS, *DETAIL_FIELDS] if fields is None else [*fields]
    found, mine = Differences(), iter(ours)
    for theirs in trace["steps"]:
        our = next(mine, None)
        if our is None:
            if not in_part:
                found.note("truncated", f"step {theirs['step']}: ours had finished")
            return found
        found.steps += 1
        for name, expected in _recorded(theirs, names):
            if not _agree(name, expected, our.get(name)):
                line = f"step {theirs['step']}: {name}: theirs {expected}, ours {our.get(name)}"
                found.note(name, line)
    if next(mine, None) is not None and not trace.get("truncated"):
        found.note("truncated", f"after step {found.steps - 1}: theirs had finished, ours goes on")
    return found


def _recorded(step: Step, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yields the fields that a step has, and what they say. A field that is there and empty says so."""
    for name in names:
        expected = step.get(name, SPARSE.get(name))
        if name in step or (expected is not None and "new" in step):
            yield name, expected


def _agree(name: str, theirs: Any, ours: Any) -> bool:
    """Whether one field agrees. Tokens sampled in vain may be unknown to us: None."""
    if name != "rows" or ours is None or len(ours) != len(theirs):
        return bool(theirs == ours)
    pairs = zip(theirs, ours, strict=True)
    known = [
        [*our[:SAMPLED], row[SAMPLED] if our[SAMPLED] is None else our[SAMPLED], *our[4:]]
        for row, our in pairs
    ]
    return bool(theirs == known)
