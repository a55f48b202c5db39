"""Who goes when KV blocks run short, where a pool knows their order, and what whoever goes leaves behind."""

from __future__ import annotations

from specfleet.sim.calendar.crowd import CalendarCrowd
from specfleet.sim.calendar.kv.pool import Pool
from specfleet.sim.calendar.stay import Stay, stay_of
from specfleet.sim.calendar.trajectories import BLOCK


def make_room_in_turn(crowd: CalendarCrowd, pool: Pool, acc: int, it: int, i: int) -> int:
    """Throws sequences out until the growth of the others fits; returns the running sum.

    In vLLM's order: each takes its blocks in turn; the tail goes when they end.

    Args:
        crowd, pool: who runs, and their blocks.
        acc: the running sum. it, i: the iteration and its entry.
    """
    pack = crowd.pack
    pool.catch_up(it, crowd.log.blocks_used)
    crowd.forget_dead(it)
    free, taken, turn = crowd.rules.usable_blocks - pool.used, 0, 0
    growth = crowd.books.growth_before(it) + growth_each(crowd, it)
    while turn < len(growth):
        wanted = growth[turn]
        if wanted <= free:
            free -= wanted
            taken += wanted
            turn += 1
            continue
        pool.take(taken)
        taken, before = 0, pool.used
        acc -= _throw_out_last(crowd, growth, it, i) if crowd.begun is None else crowd.evict_begun()
        free += before - pool.used
    pool.take(taken)
    assert pool.used == (acc >> pack.blocks) & pack.blocks_mask, "the pool and the calendar disagree"
    return acc


def _throw_out_last(crowd: CalendarCrowd, growth: list[int], it: int, i: int) -> int:
    """Throws out the last of those whose `growth` is left; it may have left. Returns its share of the sum."""
    growth.pop()
    ref = crowd.books.tail(crowd.refs)
    if ref[0] >= it:
        return crowd.evict(ref, it, i)
    crowd.books.over(stay_of(ref), ref[1])
    return 0


def growth_each(crowd: CalendarCrowd, it: int) -> list[int]:
    """Returns the blocks that each listed sequence takes in iteration `it`: read off its row."""
    bit, mask, growth = crowd.pack.blocks, crowd.pack.blocks_mask, []
    half = 1 << (bit - 1)  # the context may shrink where drafts of one's own do
    for last, first, place, source in crowd.refs:
        if last < it:
            growth.append(0)
            continue
        start = 0 if isinstance(source, Stay) else source.start[place % BLOCK]
        change = source.row.item(start + it - first - 1)
        growth.append((change + half >> bit) & mask if change > 0 else 0)  # below 0: its end was certain
    return growth


def keyed_and_held_early(
    crowd: CalendarCrowd, stay: Stay, done: int, kept: int, landed: bool
) -> tuple[int, int]:
    """As `keyed_and_held`, of somebody who is given up before the batch that ended is committed.

    Arguments as `KV.leave`. Keys are given when a row is scheduled, for the tokens known by then; without a
    row, when an outcome is committed, but for the token that is not computed yet.
    """
    rules, footprints, pack = crowd.rules, crowd.lives.now.rules, crowd.pack
    assert stay.footprint is not None
    held = (int(stay.footprint[done - 1]) >> pack.blocks) & pack.blocks_mask if done else stay.blocks
    if kept < 0:
        return rules.keyed_blocks(stay.tokens, stay.tokens), held
    query = footprints.query if stay.drafts is None else int(stay.drafts[kept]) + 1
    known = (int(stay.footprint[kept]) & pack.context_mask) - query + 1
    had_row = (int(stay.footprint[done + landed - 1]) >> pack.rows) & 1
    return rules.keyed_blocks(known - (not had_row), known), held


def keyed_and_held(crowd: CalendarCrowd, stay: Stay, done: int) -> tuple[int, int]:
    """Returns the blocks of a sequence that have a key after `done` rounds, and all that it holds."""
    rules, footprints, pack = crowd.rules, crowd.lives.now.rules, crowd.pack
    assert stay.footprint is not None
    held = (int(stay.footprint[done - 1]) >> pack.blocks) & pack.blocks_mask if done else stay.blocks
    # keys are of tokens that are known by then
    if rules.in_flight and not done:  # the step in flight computes the end of its prompt
        if stay.earlier < 0:
            return rules.keyed_blocks(stay.tokens, stay.tokens), held
        return rules.keyed_blocks(stay.earlier, stay.earlier + 1), held
    latest = done - rules.in_flight
    query = footprints.query if stay.drafts is None else int(stay.drafts[latest]) + 1
    computed = (int(stay.footprint[latest]) & pack.context_mask) - query
    return rules.keyed_blocks(computed, computed + 1), held
