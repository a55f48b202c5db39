"""What one prefill batch may admit: SGLang's `PrefillAdder`.

KV is promised, not only handed out: a newcomer counts with its whole output, those who run with the share
that the new-token ratio expects of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

from specfleet.sim.rules import NEVER
from specfleet.sim.sglang.pool import Match
from specfleet.sim.sglang.rules import (
    CLIP_MAX_NEW_TOKENS,
    IGNORE_EOS_RESERVE_TOKENS,
    Asker,
    SglangRules,
    left_to_write,
)

Who = TypeVar("Who", bound=Asker)


class Holds(Protocol):
    """What a prefill batch asks of the KV pool: `TokenPool`, or a count of it."""

    @property
    def available(self) -> int:
        """KV tokens free, or free once evicted."""
        ...

    @property
    def tree(self) -> object | None:
        """The radix tree, or None."""
        ...

    def lock(self, match: Match) -> None:
        """Keeps a prefix."""
        ...

    def unlock(self, match: Match) -> None:
        """Takes that back."""
        ...


class AddReqResult(Enum):
    """What follows from trying one request: go on, no KV is left, or another budget is used up."""

    CONTINUE = 0
    NO_TOKEN = 1
    OTHER = 2


class PrefillRow(NamedTuple, Generic[Who]):
    """A row of a prefill batch.

    Attributes:
        start, tokens: tokens computed before, and to compute.
        cut: more is to come.
        match: the prefix of a newcomer, locked; None for one who goes on.
    """

    sequence: Who
    start: int
    tokens: int
    cut: bool
    match: Match | None


class PrefillAdder(Generic[Who]):
    """The budgets of one prefill batch.

    Args:
        rules: of the engine.
        pool: its KV.
        running: lists those who run.
        promised: KV tokens that they are expected to write.
        ratio: share of their output that this is.
        mixed: of them ride along, a token each.

    Attributes:
        pieces: the rows so far.
        input_left, chunk_left: tokens of `max_prefill_tokens` and of the chunk.
        promised: KV tokens promised, outputs included. taken: the same without outputs.
    """

    def __init__(
        self,
        rules: SglangRules,
        pool: Holds,
        running: Callable[[], Sequence[Asker]],
        promised: float,
        ratio: float,
        mixed: int,
    ) -> None:
        self.rules = rules
        self.pool = pool
        self.running = running
        self.ratio = ratio
        self.pieces: list[PrefillRow[Who]] = []
        self.chunked: Who | None = None
        self.input_left = rules.max_prefill_tokens - mixed
        self.chunk_left = rules.chunked_prefill_size - mixed
        self.taken = mixed
        self.promised: float = mixed + promised
        self._order: list[tuple[float, int]] | None = None

    @property
    def left(self) -> float:
        """KV tokens that are not promised."""
        return self.pool.available - self.promised

    def _charge(self, tokens: int, output: int) -> None:
        """Takes a row off the budgets."""
        whole = self.rules.ceil_page(tokens)
        self.taken += whole + self.rules.page
        self.promised += whole + self.rules.page + output
        self.input_left -= whole
        self.chunk_left -= whole

    def _verdict(self) -> AddReqResult:
        """Returns whether another request may be tried."""
        if self.left <= 0 or self.pool.available - self.taken <= 0:
            return AddReqResult.NO_TOKEN
        if self.input_left <= 0 or self.chunk_left <= 0:
            return AddReqResult.OTHER
        return AddReqResult.CONTINUE

    def go_on(self, sequence: Who) -> Who | None:
        """Adds the next piece of the prompt that is being cut; returns it if still more is to come.

        It must go on whatever is promised, to give its KV back one day.
        """
        start = sequence.num_computed_tokens
        missing = sequence.num_tokens - start
        tokens = next_piece(missing, self.chunk_left, self.left)
        cut = tokens < missing
        self.pieces.append(PrefillRow(sequence, start, tokens, cut, None))
        self._charge(tokens, 0 if cut else min(sequence.max_tokens, CLIP_MAX_NEW_TOKENS))
        return sequence if cut else None

    def add(self, sequence: Who, match: Match) -> AddReqResult:
        """Tries one who waits; if it fits, it is the last of `pieces` and its prefix is locked."""
        rules = self.rules
        if len(self.pieces) >= rules.prefill_max_requests:
            return AddReqResult.OTHER
        if sequence.ignore_eos and self.pool.tree is None:
            return self._add_with_known_length(sequence)
        missing = sequence.num_tokens - match.tokens
        self.pool.lock(match)
        tokens, refusal = self._select(missing, left_to_write(sequence), match.tokens)
        if refusal is not None:
            self.pool.unlock(match)
            return refusal
        self._place(sequence, match, tokens, missing)
        return self._verdict()

    def _select(self, missing: int, output: int, start: int) -> tuple[int, AddReqResult | None]:
        """Returns how many tokens a request computes now, or why none; its prefix is locked."""
        rules = self.rules
        if missing + output + rules.page >= self.left:
            return 0, AddReqResult.NO_TOKEN
        whole = rules.ceil_page(missing)
        if rules.chunked_prefill_size == NEVER:
            # the first prompt may be longer than `max_prefill_tokens`
            return missing, AddReqResult.OTHER if self.pieces and whole >= self.input_left else None
        if whole <= self.chunk_left:
            return missing, None
        end = rules.floor_page(start + rules.floor_page(self.chunk_left))
        return end - start, AddReqResult.OTHER if end <= start else None

    def _place(self, sequence: Who, match: Match, tokens: int, missing: int) -> None:
        """Adds a row."""
        cut = tokens < missing
        self.pieces.append(PrefillRow(sequence, match.tokens, tokens, cut, match))
        if cut:
            self.chunked = sequence
        self._charge(tokens, 0 if cut else min(sequence.max_tokens, CLIP_MAX_NEW_TOKENS))

    def _add_with_known_length(self, sequence: Who) -> AddReqResult:
        """Tries one whose output length is known, without a radix tree: KV must last until each has ended."""
        rules, missing = self.rules, sequence.num_tokens
        wanted = rules.ceil_page(missing) + rules.page
        available = self.pool.available - self.taken
        if wanted > min(available, self.left):
            return AddReqResult.NO_TOKEN
        self._note_order(sequence)
        assert self._order is not None
        left, freed = available - wanted, 0
        for index, (output, held) in enumerate(self._order):
            count = len(self._order) - index
            if left + freed - output * count <= IGNORE_EOS_RESERVE_TOKENS * count:
                return AddReqResult.NO_TOKEN
            freed += held
        if missing <= self.chunk_left:
            self._place(sequence, Match(None, 0), missing, missing)
        elif self.chunk_left <= 0:
            return AddReqResult.OTHER
        else:
            self._place(sequence, Match(None, 0), self.chunk_left, missing)
        return self._verdict()

    def _note_order(self, sequence: Who) -> None:
        """Puts a request into the order in which all are expected to end."""
        if self._order is None:
            present: list[Asker] = [sequence, *self.running(), *(piece.sequence for piece in self.pieces)]
            states = [state for state in map(self._state, present) if state is not None]
            self._order = sorted(states, key=lambda state: state[0])
            return
        state = self._state(sequence)
        if state is None:
            return
        place = 0
        for place, (output, _) in enumerate(self._order):  # noqa: B007
            if state[0] <= output:
                break
        self._order.insert(place, state)  # one that outlasts all stands before the last, as in SGLang

    def _state(self, sequence: Asker) -> tuple[float, int] | None:
        """Returns the tokens that a request is expected to write, and those it holds; None if it ends."""
        ratio = 1.0 if sequence.ignore_eos else self.ratio
        left = sequence.max_tokens * ratio - sequence.num_output_tokens
        return (left, sequence.num_tokens) if left > 0 else None


def may_try(full: bool, waiting: int, places: int, displaces: bool) -> tuple[bool, bool]:
    """Returns whether those who wait are tried, where no prompt is being cut, and what `full` is then.

    Args:
        full: nobody is admitted until somebody leaves the running list.
        waiting: requests that wait.
        places: rows that a prefill batch may have.
        displaces: who waits may displace who runs.
    """
    if full or not waiting:
        return False, full
    if places <= 0 and not displaces:
        return False, True
    return True, False


def next_piece(missing: int, chunk_left: int, left: float) -> int:
    """Returns the tokens of a cut prompt that are next: at least some, whatever is promised.

    Args:
        missing: of the prompt. chunk_left: of the chunk. left: KV tokens that are not promised.
    """
    most = min(chunk_left, int(left))
    return min(missing, most if most > 0 else chunk_left)


def admit_counted(
    rules: SglangRules,
    available: int,
    promised: float,
    places: int,
    full: bool,
    begun: tuple[int, int] | None,
    waiting: Iterable[tuple[int, int]],
) -> tuple[list[int], bool, bool]:
    """Returns what `go_on` and `admit` find where nothing is in the radix tree and nobody is displaced.

    Args:
        rules: of the engine. available: KV tokens free. promised: those of them that others are to write.
        places, full: as of `admit`.
        begun: tokens that are left of the prompt that is being cut, and its max_tokens; None: none is.
        waiting: prompt and max_tokens of those who wait, in turn.

    Returns:
        The tokens that each row computes, that of the cut prompt first; whether more is to come of the last
        one; and what `full` is then.
    """
    page, chunk_left, input_left = rules.page, rules.chunked_prefill_size, rules.max_prefill_tokens
    counts: list[int] = []
    taken, cut = 0, False
    if begun is not None:
        missing, output = begun
        counts.append(next_piece(missing, chunk_left, available - promised))
        cut = counts[0] < missing
        whole = -(-counts[0] // page) * page
        taken = whole + page
        promised += taken + (0 if cut else min(output, CLIP_MAX_NEW_TOKENS))
        input_left, chunk_left = input_left - whole, chunk_left - whole
    for tokens, output in waiting:
        if len(counts) >= places:
            full = True
        if full or len(counts) >= rules.prefill_max_requests:
            break
        output = min(output, CLIP_MAX_NEW_TOKENS)
        if tokens + output + page >= available - promised:
            return counts, cut, True
        whole = -(-tokens // page) * page
        if rules.chunked_prefill_size == NEVER:
            if counts and whole >= input_left:  # the first may be longer than `max_prefill_tokens`
                break
        elif whole > chunk_left:
            whole = tokens = chunk_left // page * page
            if whole <= 0:
                break
            cut, output = True, 0
        counts.append(tokens)
        taken += whole + page
        promised += whole + page + output
        input_left, chunk_left = input_left - whole, chunk_left - whole
        if available - promised <= 0 or available - taken <= 0:
            return counts, cut, True
        if input_left <= 0 or chunk_left <= 0:
            break
    return counts, cut, full


def admit(
    adder: PrefillAdder[Who],
    waiting: Iterable[Who],
    full: bool,
    places: Callable[[], int],
    match: Callable[[Who], Match],
    displace: Callable[[Who], bool] | None = None,
) -> bool:
    """Tries those who wait, in turn, until one does not fit; returns what `full` is then.

    Args:
        adder: the batch.
        waiting: those who wait, in turn.
        full: nobody is admitted until somebody leaves the running list.
        places: returns how many rows the batch may have.
        match: finds a prefix in the radix tree.
        displace: makes room for one who waits, if it can; None: nobody is displaced.
    """
    for sequence in waiting:
        if len(adder.pieces) >= places():
            full = True
        if full and not (displace is not None and displace(sequence)):
            return full
        verdict = adder.add(sequence, match(sequence))
        if verdict is AddReqResult.NO_TOKEN:
            full = True
        if verdict is not AddReqResult.CONTINUE:
            return full
    return full
