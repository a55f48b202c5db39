"""Those who run in an engine that decodes prompts computed elsewhere, and those whose KV is on its way.

vLLM's rule for KV that is loaded asynchronously (`WAITING_FOR_REMOTE_KVS` in `v1/core/sched/scheduler.py`):
the queue is gone through in turn, as long as there are budget and seats. A newcomer gets the blocks of its
whole prompt, without room for drafts, and then waits for the KV, holding them, while those behind it are
looked at; for whom there are no blocks, nobody behind is looked at. When its KV is there, it is let in in its
turn, computes the last token of its prompt again, and samples its first one. Who is thrown out later computes
everything again, here.

Where prompts whose KV is there hold all blocks, nobody runs, and the first in line needs one more, vLLM
stands still for good; and where the only one that runs throws itself out for lack of blocks, it begins again
for good. Here the last of them then gives its blocks up, and computes its prompt itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.sim.columns.crowd import ColumnCrowd
from specfleet.sim.config import EngineConfig
from specfleet.sim.kvcache import NO_HIT, Hit, KVCache
from specfleet.sim.listed import Found
from specfleet.sim.rules import SchedulerRules
from specfleet.sim.sequence import Sequence
from specfleet.sim.step import Candidate


class ReceivingCrowd(ColumnCrowd):
    """As `ColumnCrowd`, where the KV of every newcomer comes from elsewhere.

    Attributes:
        opened: requests that have been given blocks for their KV; whoever sends it takes them out.
        given_up: requests that gave the KV up that had come; as above.
    """

    def __init__(self, config: EngineConfig, rules: SchedulerRules, kv: KVCache, k_varies: bool) -> None:
        super().__init__(config, rules, kv, k_varies)
        self._coming: dict[int, Sequence] = {}
        self._arriving: dict[int, Sequence] = {}
        self.opened: list[int] = []
        self.given_up: list[int] = []

    @property
    def awaits_kv(self) -> bool:
        """As `ListedCrowd.awaits_kv`."""
        return bool(self._arriving)

    def enter(self, sequence: Sequence) -> None:
        """As `ListedCrowd.enter`: its KV is to come."""
        self._coming[sequence.id] = sequence
        super().enter(sequence)

    def arrived(self, request_id: int) -> None:
        """The KV of a prompt has come."""
        sequence = self._arriving.pop(request_id)
        sequence.num_computed_tokens = sequence.prompt_tokens - 1

    def in_turn(self) -> Iterator[Candidate[Found]]:
        """As `ListedCrowd.in_turn`; who waits for KV is passed over, with blocks for it if there are any."""
        given, waiting = 0, self.waiting
        while waiting:
            sequence = waiting.head()
            if sequence.id in self._coming:
                blocks = self._open(sequence)
                if not blocks:
                    return
                given += blocks
            if sequence.num_stale_tokens or sequence.id in self._arriving:
                self.passed_over.append(waiting.pop())
                continue
            held = sequence.num_blocks
            hit = NO_HIT if held else self.kv.lookup(sequence)
            computed, found = sequence.num_computed_tokens + hit.tokens, held + len(hit.blocks)
            least = self.rules.reserved(sequence.prompt_tokens + sequence.max_tokens)
            yield (sequence, hit), sequence.num_tokens, computed, found, self.kv.idle(hit) + given, least
            given = 0

    def _open(self, sequence: Sequence) -> int:
        """Gives a newcomer the blocks of its prompt; returns how many, 0 if there are too few."""
        blocks = self.rules.blocks_received(sequence.prompt_tokens)
        kept_free = self.rules.watermark_blocks if self.running else 0
        if blocks > self.kv.free_blocks - kept_free:
            return 0
        self.kv.take(sequence, NO_HIT, blocks)
        self._arriving[sequence.id] = self._coming.pop(sequence.id)
        self.opened.append(sequence.id)
        return blocks

    def end(self) -> None:
        """As `ListedCrowd.end`; whoever is last gives its KV up where nobody can go on otherwise."""
        super().end()
        batch = self.batch
        stands = not (self.flying or self._arriving or batch.preempted or batch.rows)
        if self.running or not (stands or batch.preempted):
            return
        holders = [one for one in self.waiting if one.num_blocks and one.id not in self._arriving]
        if holders:
            last = holders[-1]
            self.kv.free(last)
            last.num_computed_tokens = 0
            last.num_preemptions += 1
            self.given_up.append(last.id)
            batch.preempted.append(last)

    def _take(self, sequence: Sequence, hit: Hit, blocks: int) -> None:
        if not sequence.num_blocks:
            super()._take(sequence, hit, blocks)
            return
        grown = self.kv.grow(sequence, (sequence.num_blocks + blocks) * self.rules.block_size)
        assert grown, "an admission was given no more than is free"
