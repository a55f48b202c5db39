"""One turn's decision of SGLang's scheduler."""

from __future__ import annotations

from collections.abc import Mapping

from specfleet.sim.config import SglangConfig
from specfleet.sim.sequence import FINISHED, Batch, Sequence
from specfleet.sim.sglang.rules import CLIP_MAX_NEW_TOKENS, expected

CUT, PREFILL, MIXED, DECODE = "C", "P", "M", "D"
"""Kinds of rows: a piece of a prompt with more to come, the last piece, a running request that rides in a
prefill batch, a decode."""


class SglangBatch(Batch):
    """As `Batch`, with what SGLang's rules need of its rows. `skips_drafts`: the drafter runs but once.

    Attributes:
        kinds: of the rows.
        stays: how often each had been thrown out when it was scheduled.
        retracted: thrown out because a decode found no KV. displaced: because of another's priority. Both are
            in `preempted`.
    """

    __slots__ = ("displaced", "kinds", "retracted", "stays")

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[str] = []
        self.stays: list[int] = []
        self.retracted: list[Sequence] = []
        self.displaced: list[Sequence] = []

    @property
    def tail(self) -> SglangBatch:
        """As `Batch.tail`."""
        return self

    def row(self, sequence: Sequence, kind: str, tokens: int, drafts: int) -> None:
        """Adds a row; computed tokens advance at once, every draft counted as accepted."""
        self.place(sequence, tokens, drafts)
        self.kinds.append(kind)
        self.stays.append(sequence.num_preemptions)
        self.samples.append(kind != CUT)
        self.total_tokens += tokens
        sequence.num_computed_tokens += tokens
        sequence.is_prefill_chunk = kind == CUT
        if kind != CUT:
            sequence.num_output_placeholders += 1
        if drafts and sequence.drafts_are_void:
            self.void.add(sequence.id)
        if kind in (CUT, PREFILL):
            self.prompts = True
        self.skips_drafts = kind != DECODE

    def is_stale(self, row: int) -> bool:
        """Whether a row's result is thrown away: its request has ended or was thrown out since."""
        sequence = self.sequences[row]
        return sequence.state == FINISHED or sequence.num_preemptions != self.stays[row]


def lacking(looked_at: Mapping[int, int], waits: Sequence, left: float) -> float:
    """Returns the KV tokens that one who waits lacks. A prompt that has not been tried yet counts nothing, as
    in SGLang.

    Args:
        looked_at: tokens of prompts that were tried, less those found in the tree, by request.
        waits: who needs room.
        left: KV tokens that are not promised.
    """
    return looked_at.get(waits.id, 0) + min(waits.max_tokens, CLIP_MAX_NEW_TOKENS) - left


def outranked(
    running: list[Sequence], waits: Sequence, config: SglangConfig, ratio: float, missing: float
) -> list[Sequence]:
    """Returns who would be thrown out for one who waits: running requests of much lower priority, the least
    important and latest first, until they make room for it; nobody where they do not.

    Args:
        running: who may be thrown out.
        waits: who needs room. config: says how priorities are read, and by how much they must differ.
        ratio: share of its output that a running request is expected to write. missing: KV tokens.
    """
    sign = 1 if config.schedule_low_priority_values_first else -1
    victims: list[Sequence] = []
    there = [one for one in running if one.state != FINISHED]
    for other in sorted(there, key=lambda one: (-one.priority * sign, -one.arrival)):
        if (other.priority - waits.priority) * sign <= config.priority_scheduling_preemption_threshold:
            break
        victims.append(other)
        missing -= expected(other, ratio)
        if missing <= 0:
            break
    return [] if missing > 0 else victims
