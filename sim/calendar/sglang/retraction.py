"""Requests are thrown out, and their calendar with them: for lack of KV, or because of another's priority.

As `SglangScheduler._retract` and `_displace`. What a victim has written it keeps; it waits again, and is
computed again.
"""

from __future__ import annotations

from typing import NamedTuple

from specfleet.sim.calendar.sglang.asking import Asking, Followed, Written
from specfleet.sim.calendar.sglang.kv import Shared
from specfleet.sim.calendar.sglang.line import Sorted
from specfleet.sim.calendar.sglang.position import SglangPosition
from specfleet.sim.calendar.sglang.stays import FIRST, NUMBERS, RANK, ROUNDS
from specfleet.sim.config import SglangConfig
from specfleet.sim.errors import Unsuited
from specfleet.sim.sglang.adder import PrefillAdder
from specfleet.sim.sglang.rules import CLIP_MAX_NEW_TOKENS, RETRACT_DECODE_STEPS, expected


class Retracts(Unsuited):
    """Somebody has to be retracted, and the lane has not kept what is needed for that: it begins again."""


class Runner(NamedTuple):
    """One who runs.

    Attributes:
        outputs: known. decodes: it was in, the one in flight included.
        pages: held. missing: that its next decode takes.
    """

    told: Followed
    outputs: int
    decodes: int
    pages: int
    missing: int


def retract(lane: SglangPosition) -> None:
    """Throws out running requests until the next decode of the others fits.

    Raises:
        Retracts: the lane cannot.
        Unsuited: not even one fits.
    """
    shared, line = lane.shared, lane.waiting
    if shared is None or not isinstance(line, Sorted):
        raise Retracts("requests are retracted for lack of KV")
    runners = [_runner(lane, one, outputs) for one, outputs in lane.runs()]
    keep = sorted(runners, key=lambda runner: line.keeps(runner.told, runner.outputs), reverse=True)
    held, missing = lane.held, sum([runner.missing for runner in runners])
    shared.begin(held)
    shared.make_free(missing * lane.rules.page)
    victims: list[Runner] = []
    fits = False
    while len(keep) > 1 and not fits:
        victim = keep.pop()
        victims.append(victim)
        shared.drop(victim.told, victim.pages)
        shared.make_free(len(keep) * RETRACT_DECODE_STEPS)
        missing -= victim.missing
        fits = _fits(shared, missing * lane.rules.page)
    if not fits:
        raise Unsuited("SGLang gives a request up, for which alone there is not enough KV")
    if lane.ends is not None:
        lane.ends.settle(lane.decodes - 1 - lane.decode_flies, lane.iterations - 1 - lane.flying)
    gone = {victim.told.place for victim in victims}
    before = [runner.told for runner in runners if runner.told.place not in gone]
    lane.stays.divide()
    for told in before:
        lane.stays.close(told.stay, lane.decodes - 1)
    _take_out(lane, victims)
    _stand_anew(lane, before, [runner.told for runner in keep])
    for victim in victims:
        line.queue.add(victim.told)
    lane.full = False
    lane.ratio.raise_after_retraction([Written(one.told, one.outputs) for one in keep])


def displace(lane: SglangPosition, adder: PrefillAdder[Asking], asking: Asking, config: SglangConfig) -> bool:
    """Throws out running requests of much lower priority, if that makes room for one who waits.

    Args:
        lane: of them. adder: the prefill batch. asking: who waits.
        config: how much lower that is.
    """
    shared, line = lane.shared, lane.waiting
    assert shared is not None and isinstance(line, Sorted) and isinstance(asking, Followed)
    sign = 1 if config.schedule_low_priority_values_first else -1
    runners = [_runner(lane, one, outputs) for one, outputs in lane.runs()]
    missing = asking.looked_at + min(asking.max_tokens, CLIP_MAX_NEW_TOKENS) - adder.left
    chosen: dict[int, float] = {}
    for runner in sorted(runners, key=lambda runner: (-runner.told.priority * sign, -runner.told.arrival)):
        if (runner.told.priority - asking.priority) * sign <= config.priority_scheduling_preemption_threshold:
            break
        chosen[runner.told.place] = promise = expected(Written(runner.told, runner.outputs), adder.ratio)
        missing -= promise
        if missing <= 0:
            break
    if not chosen or missing > 0:
        return False
    if lane.ends is not None:
        lane.ends.settle(lane.decodes - 1 - lane.decode_flies, lane.iterations - 1 - lane.flying)
    lane.stays.divide()
    victims = [runner for runner in runners if runner.told.place in chosen]
    for index, victim in enumerate(victims, 1):
        adder.promised -= chosen[victim.told.place]
        shared.drop(victim.told, victim.pages)
        shared.make_free((len(runners) - index) * RETRACT_DECODE_STEPS)
        lane.displaced.append(victim.told)
    _take_out(lane, victims)
    stay = [runner.told for runner in runners if runner.told.place not in chosen]
    _leave_again(lane, stay, stay)
    return True


def _fits(shared: Shared, tokens: int) -> bool:
    """Whether a decode that takes so many KV tokens fits, cached ones evicted."""
    shared.make_free(tokens)
    return shared.free >= tokens


def _runner(lane: SglangPosition, one: Asking, outputs: int) -> Runner:
    """Returns what is asked of one who runs."""
    assert isinstance(one, Followed)
    rules, block, j = lane.rules, one.block, one.j
    done = lane.decodes - one.since
    if not done:
        pages = rules.ceil_page(one.num_tokens)
    else:
        known = done - 1 - (lane.behind and rules.reserve > 0)
        pages = rules.tokens_to_decode(block.computed(j, known))
    known = done - 1 if rules.reserve and lane.decode_flies else done
    missing = rules.tokens_to_decode(block.computed(j, known)) - pages
    return Runner(one, outputs, done, pages // rules.page, missing // rules.page)


def _take_out(lane: SglangPosition, victims: list[Runner]) -> None:
    """Takes victims out of the calendar, and notes what became of their rounds."""
    stays, flying, batch = lane.stays, lane.decode_flies, lane.prefilled
    fresh = {one.place for one in batch.members}
    for told, outputs, done, pages, _ in victims:
        stays.close(told.stay, lane.decodes - 1 - flying)
        if told.place in fresh:
            batch.members.remove(told)
            batch.count(told.block, told.j, told.most, pages, lane.pack.context_mask, -1)
        if done:
            lane.old_pages -= pages
        else:
            lane.new_pages -= pages
        block, j = told.block, told.j
        if block.rounds[j]:
            lane.calendar.remove(block, j, lane.entry, done)
            word, reach, beyond = block.word(j, done)
            lane.sum -= word
            lane.reach -= reach
            lane.beyond -= beyond
        heard = -1 if told.place in fresh else done - flying
        stays.noted[NUMBERS * told.stay + ROUNDS] = heard
        if block.gains is not None:
            low, rounds = block.start[j], block.rounds[j]
            drawn = block.gains[low : low + rounds]
            first, kept = max(heard, 0), int(block.kept[j]) if rounds else 0
            stays.cut(told.place, told.since + first, drawn[first:], kept, done - first)
            told.verified += done
            told.accepted += int(drawn[:done].sum()) - done
        told.retractions += 1
        stays.retractions[told.place] = told.retractions
        _wait_again(lane, told, outputs)
    for rank, one in enumerate(batch.members, 1):
        one.rank = stays.noted[NUMBERS * one.stay + RANK] = rank
        if one.first == stays.noted[NUMBERS * one.stay + FIRST]:
            one.first_rank = rank


def _wait_again(lane: SglangPosition, told: Followed, outputs: int) -> None:
    """Gives a victim the life that it has once it is computed again."""
    lives = lane.lives
    told.num_output_tokens, told.num_tokens = outputs, told.prompt_tokens + outputs
    told.num_computed_tokens = 0
    block = lives.again(told.place, outputs, told.verified)
    told.live(block, 0)
    if not outputs:
        told.first = -1
    lives.rounds[told.place] = told.verified + block.rounds[0]
    lives.accepted[told.place] = told.accepted + block.accepted()


def _stand_anew(lane: SglangPosition, before: list[Followed], after: list[Followed]) -> None:
    """Those who stay stand in another order from the next decode on."""
    for told in after:
        if told.last >= lane.decodes:
            lane.stays.stand(told.stay, lane.decodes, told.last)
    _leave_again(lane, before, after)


def _leave_again(lane: SglangPosition, before: list[Followed], after: list[Followed]) -> None:
    """Notes anew who runs and who leaves when, in the order up to the next decode and that from then on."""
    lane.running = [told for told in after if told.last >= told.since]
    assert lane.shared is not None
    lane.shared.rearrange(lane.decodes, before, after)
    if lane.ends is not None:
        lane.ends.rearrange(lane.decodes, before, after)
