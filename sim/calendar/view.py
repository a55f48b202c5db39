"""Who runs in an engine on the fast path, one by one: read off its calendar, without changing anything.

A calendar only adds up; here stands what the sum is made of, from the moment an iteration is scheduled
until the next one is. Only for engines at a fixed K, and only where somebody may be preempted or stepped
(`CalendarCrowd.tracks`): the others forget who runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.kv.private import PrivateKV
from specfleet.sim.calendar.kv.shared import SharedKV
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.stay import Stay, stay_of


class Running(NamedTuple):
    """A sequence of the running list in the iteration that was scheduled last.

    Attributes:
        place: of the request.
        prompting: its prompt (after a preemption all it has written) was not computed before this iteration.
        computed: KV tokens. Of who decodes: before this iteration, rejected drafts taken off. Of who is
            prompting: the piece of this iteration included.
        known: tokens of prompt and output before this iteration, all earlier outcomes included.
        blocks: KV blocks held, those taken for this iteration included.
        tokens: computed in this iteration, of which
        drafts: are verified. Both are 0 of who is prompting, and without a row.
        sampled: tokens sampled, 1 + accepted drafts; 0 where the prompt is not computed to its end.
        kept: of which are output.
        ends: the outcome of this iteration is its last.
        over: the outcome of the iteration before, in flight when this one was scheduled, was its last.
            Its row is in vain; it has none if `max_tokens` was sure to be reached.
    """

    place: int
    prompting: bool
    computed: int
    known: int
    blocks: int
    tokens: int = 0
    drafts: int = 0
    sampled: int = 0
    kept: int = 0
    ends: bool = False
    over: bool = False


def running(lane: Lane, it: int) -> Iterator[Running]:
    """Yields who runs in iteration `it`, the last one scheduled, in the order of the running list."""
    rules, wakes = lane.rules, lane.log.wakes
    alone = bool(rules.lag and wakes and wakes[-1] == it)  # nothing was in flight: whoever had ended is gone
    for ref in lane.crowd.refs:
        last, first, place, _ = ref
        if last < it:
            continue
        stay, rounds = stay_of(ref), it - first
        if not rounds:
            ends = not stay.rounds
            yield Running(place, True, stay.tokens, stay.tokens, stay.blocks, sampled=1, kept=1, ends=ends)
        elif rounds <= stay.rounds or not alone:
            yield _decoding(rules, stay, rounds)
    if (begun := lane.crowd.begun) is not None:
        yield Running(begun.stay.place, True, begun.done, begun.stay.tokens, begun.held)


def _decoding(rules: Footprints, stay: Stay, rounds: int) -> Running:
    """Returns a sequence in the `rounds`-th iteration after the one that computed its prompt."""
    pack, place = rules.packing, stay.place
    word = rules.prefilling(stay.blocks) + int(np.add.reduce(stay.row[:rounds]))
    blocks = (word >> pack.blocks) & pack.blocks_mask
    if not (word >> pack.rows) & pack.rows_mask:
        return Running(place, False, stay.final, stay.final + 1, blocks, over=True)
    if pack.wide and stay.side is not None:
        word += int(np.add.reduce(stay.side[:rounds]))
    computed = (word & pack.context_mask) - rules.query
    over, ends = rounds > stay.rounds, rounds == stay.rounds
    sampled = 1 if stay.gains is None or over else int(stay.gains[rounds - 1])
    kept = 0 if over else stay.kept if ends else sampled
    row = (rules.query, rules.k, sampled, kept)
    return Running(place, False, computed, computed + 1, blocks, *row, ends=ends, over=over)


def thrown_out(lane: Lane) -> Iterator[tuple[int, int]]:
    """Yields place and known tokens of who was preempted and waits, the first in line first.

    Left out is who was preempted while its last tokens were in flight: it will not come back.
    """
    for stay in reversed(lane.waiting.preempted):
        yield stay.place, stay.tokens


def fresh(lane: Lane) -> Iterator[int]:
    """Yields the places of who has been submitted and was never admitted, in order."""
    yield from lane.waiting.inbox[lane.waiting.head :]


def usable_blocks(lane: Lane) -> int:
    """Returns the KV blocks that requests can hold."""
    return lane.crowd.rules.usable_blocks


def totals(lane: Lane, it: int) -> tuple[int, int]:
    """Returns the sequences running and the KV blocks free when iteration `it` had been scheduled.

    It is the calendar's own sum, known as soon as the turn is over.
    """
    pack, total = lane.rules.packing, lane.log.sums[it]
    return total >> pack.running, usable_blocks(lane) - ((total >> pack.blocks) & pack.blocks_mask)


def returning_blocks(lane: Lane, it: int) -> int:
    """Returns how many more are free once all is known that the iteration after `it` is scheduled with."""
    if isinstance(lane.crowd.kv, PrivateKV | SharedKV):
        return lane.crowd.kv.pool.returning(it + 1)
    lag = lane.rules.lag
    return sum(row.blocks for row in running(lane, it) if (row.over if lag else row.ends))
