"""Where the spread between requests is not given: what holds at one end of the range and not at the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import pytest
from plan_toys import every, load_small

from specfleet.experiments.plan.answer import answer
from specfleet.experiments.plan.asking import Laboratory, Question, Reply
from specfleet.experiments.plan.band import doubted, over_the_band, reconsider
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.search import Entry, Search
from specfleet.experiments.plan.seen import Judged
from specfleet.experiments.plan.traffic import Traffic
from specfleet.experiments.point.bounds import Bound
from specfleet.experiments.schema.blocks.acceptance import Process
from specfleet.sim.statistics.limits import Kept


class Ends:
    """A laboratory in which every engine has a ratio by the spread between requests.

    Args:
        wide, alike: ratios with the widest spread, and with none.
    """

    def __init__(self, wide: float, alike: float) -> None:
        self.wide, self.alike = wide, alike
        self.asked = 0

    def ask(self, questions: Sequence[Question]) -> list[Reply]:
        """Met up to a ratio of 1."""
        found = []
        for question in questions:
            self.asked += 1
            process = question.config.acceptance
            assert isinstance(process, Process)
            ratio = self.alike if math.isinf(process.concentration) else self.wide
            verdict: Kept = "met" if ratio <= 1.0 else "missed"
            found.append(Reply(Judged(verdict, ratio, "p99_tpot_ms"), [], None, 1))
        return found


def drafting() -> Candidate:
    """One that drafts, its spread not given."""
    return next(each for each in every(load_small()) if each.k and not each.refusal)


def searched(laboratory: Ends) -> tuple[Search, Entry]:
    """A search that has looked at one candidate with two replicas."""
    search = Search(cast("Laboratory", laboratory), Traffic(60.0), (0,))
    entry = search.entries([drafting()], {drafting().id: Bound(40.0, 1.0, "TPOT")})[0]
    (entry.tried[2],) = search.ask([(entry.candidate, 2)])
    return search, entry


def test_a_winner_that_fails_at_an_end_is_not_sure_and_the_end_is_named() -> None:
    search, entry = searched(Ends(0.8, 1.2))
    entry.high = 2
    assert doubted(entry, over_the_band(search, entry.candidate, 2))
    assert entry.high is None and entry.unsettled == [2]
    assert "with all requests alike 1.20 of p99_tpot_ms" in entry.tried[2].judged.why


def test_a_winner_that_holds_at_all_ends_stays() -> None:
    search, entry = searched(Ends(0.8, 0.7))
    entry.high = 2
    assert not doubted(entry, over_the_band(search, entry.candidate, 2))
    assert entry.high == 2


@pytest.mark.parametrize(("alike", "open_"), [(0.9, [2]), (1.1, [])])
def test_what_fails_with_the_widest_spread_and_not_with_another_is_open(
    alike: float, open_: list[int]
) -> None:
    search, entry = searched(Ends(1.3, alike))
    entry.low = 2
    reconsider(search, [entry], None)
    assert entry.unsettled == open_
    assert entry.low == (1 if open_ else 2)


def test_a_plan_that_depends_on_the_spread_says_to_state_or_measure_it() -> None:
    search, entry = searched(Ends(1.3, 0.9))
    entry.low = 2
    reconsider(search, [entry], None)
    this = Planned(load_small(), Traffic(60.0), (0,), (entry.candidate,), entries=[entry])
    this.cheaper = search.in_question([entry], None)
    said = answer(this)
    assert "it depends on the spread between requests" in said
    assert "State the spread between requests (acceptance.concentration), or measure it" in said
    assert "Longer simulations" not in said


def test_plain_decoding_and_a_given_spread_have_no_band() -> None:
    laboratory = Ends(0.8, 1.2)
    search, _ = searched(laboratory)
    before = laboratory.asked
    plain = next(each for each in every(load_small()) if not each.k)
    given = load_small().model_copy(
        update={"acceptance": Process.model_validate({"conditional_acceptance": 0.7, "concentration": 9.0})}
    )
    stated = next(each for each in every(given) if each.k and not each.refusal)
    assert not over_the_band(search, plain, 1) and not over_the_band(search, stated, 1)
    assert laboratory.asked == before
