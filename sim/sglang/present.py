"""Who is in an engine under SGLang's rules, and what it has: `scheduler` decides about them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Rows

from specfleet.sim.config import EngineConfig
from specfleet.sim.sequence import FINISHED, AskedTokens, Sequence
from specfleet.sim.sglang.batch import SglangBatch
from specfleet.sim.sglang.pool import TokenPool
from specfleet.sim.sglang.queue import SglangQueue
from specfleet.sim.sglang.rules import NewTokenRatio, SglangRules
from specfleet.sim.speculation.policy import Policy


class Present:
    """Who is in one engine: those who wait, run, or are on their way from one to the other.

    Args:
        config: limits and rules, with an `sglang` part.
        policy: chooses the drafts of the next verification; None is always K.

    Attributes:
        running: those who decode, in order.
        line: those who wait.
        chunked: whose prompt is being cut, or None.
        full: nobody is admitted until somebody leaves the running list.
        ratio: share of its output that a running request is expected to write.
        pool: the KV.
        ending: requests that were aborted while they ran, and end with their next result.
    """

    def __init__(self, config: EngineConfig, policy: Policy | None = None) -> None:
        assert config.sglang is not None
        self.config = config
        self.sglang = config.sglang
        self.policy = policy
        self.rules = SglangRules.of(config)
        pool = config.usable_blocks, config.block_size, config.enable_prefix_caching, config.uses_eagle
        self.pool = TokenPool(*pool)
        self.line: SglangQueue[Sequence] = SglangQueue(self.sglang, self.pool)
        self.running: list[Sequence] = []
        self.chunked: Sequence | None = None
        self.full = False
        self.ratio = NewTokenRatio.of(self.sglang.schedule_conservativeness)
        self._joining: tuple[list[Sequence], Sequence | None] | None = None
        self._in_flight: deque[SglangBatch] = deque()
        self._refused: set[int] = set()
        self.ending: set[int] = set()
        self._looked_at: dict[int, int] = {}
        self._unfinished = 0

    @property
    def kv(self) -> TokenPool:
        """The KV, as `Engine` asks for it."""
        return self.pool

    @property
    def waiting(self) -> list[Sequence]:
        """Those who wait, in the order in which they are tried."""
        return self.line.queue

    def present(self) -> list[Sequence]:
        """Unfinished requests: running, on their way into the running list, being cut, waiting."""
        joining = self._joining[0] if self._joining else []
        seen: dict[int, Sequence] = {}
        cut = [self.chunked] if self.chunked is not None else []
        flying = [sequence for batch in self._in_flight for sequence in batch.sequences]
        for sequence in (*self.running, *joining, *cut, *flying, *self.waiting):
            if sequence.state != FINISHED:
                seen[sequence.id] = sequence
        return [*seen.values()]

    def __len__(self) -> int:
        """Unfinished requests."""
        return self._unfinished

    @property
    def num_running(self) -> int:
        """Requests that hold KV: they run, or their prompt has been begun."""
        return len(self.pool.held)

    def refusal(self, request: Sequence | AskedTokens) -> str | None:
        """Returns why a request is refused, or None. Outputs that do not fit are cut, as SGLang does."""
        return self.rules.refusal(request.prompt_tokens)

    def add(self, sequence: Sequence, computed_tokens: int = 0) -> None:
        """Puts a request into the queue. Its output is cut to what the pool holds.

        A prompt that is too long is refused: it passes the queue as a prompt of one token.
        """
        assert not computed_tokens, "KV from elsewhere is not one of SGLang's rules here"
        prompt, rules = sequence.prompt_tokens, self.rules
        sequence.ignore_eos = sequence.ignore_eos or self.sglang.ignore_eos
        sequence.max_tokens = rules.max_new_tokens(prompt, sequence.max_tokens)
        if prompt >= rules.max_req_input_len:
            self._refused.add(sequence.id)
            sequence.prompt_tokens = sequence.num_tokens = 1
            sequence.segments = (("refused", 1),)
        self._unfinished += 1
        self.line.add(sequence)

    def abort(self, request_ids: Rows[int]) -> list[Sequence]:
        """Takes those out of the queue who wait; who runs ends with the next result that it has, which counts
        (SGLang's `abort_request`, `to_finish`). Returns those who are gone."""
        gone = [sequence for sequence in self.waiting if sequence.id in request_ids]
        self.line.take({sequence.id for sequence in gone})
        self._unfinished -= len(gone)
        for sequence in gone:
            sequence.state = FINISHED
        self.ending |= {sequence.id for sequence in self.present() if sequence.id in request_ids}
        return gone

    waits_for_others = False
    """Its pools are not disaggregated here."""

    def rest(self) -> None:
        """A turn found nothing in flight and nothing to do: an idle engine expects long outputs again."""
        if not len(self):
            self.ratio.reset()

    def check(self) -> None:
        """Proves that KV adds up and that no request is where it should not be.

        Raises:
            AssertionError: with the figures.
        """
        self.pool.check(self.present())
        most = self.rules.max_running_requests
        assert len(self.pool.held) <= most, f"{len(self.pool.held)} requests hold KV, {most} may run"
