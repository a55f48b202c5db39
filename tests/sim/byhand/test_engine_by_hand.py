"""Small parts of engines worked by hand: places within a step, slots, SGLang's pool, a bandit's bounds."""

from __future__ import annotations

from dataclasses import replace
from math import log, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specfleet.sim.calendar.chunk_times import Ranks
from specfleet.sim.calendar.columns import Stays
from specfleet.sim.calendar.footprints import Footprints, unused_places
from specfleet.sim.calendar.stay import Stay
from specfleet.sim.calendar.sums import LONGEST_WINDOW, Calendar
from specfleet.sim.config import EngineConfig
from specfleet.sim.errors import Breach
from specfleet.sim.kvlayout import KvLayout
from specfleet.sim.laws.steps import StepLaws
from specfleet.sim.metrics.figures import ClassFigures
from specfleet.sim.metrics.seconds import Seconds
from specfleet.sim.metrics.sums import Counted
from specfleet.sim.rules import SchedulerRules
from specfleet.sim.sequence import Sequence
from specfleet.sim.sglang.pool import tokens_of
from specfleet.sim.sglang.radix import RadixTree
from specfleet.sim.sglang.rules import SglangRules
from specfleet.sim.sglang.scheduler import SglangScheduler
from specfleet.sim.speculation import bursts
from specfleet.sim.speculation.exactness import TREES, Rollback, rollback_of
from specfleet.sim.speculation.policies_learning import Bandit, SurvivalEstimate
from specfleet.sim.speculation.policy import Seen
from specfleet.workloads.normal import normal_quantile

ENGINE = EngineConfig(16, 64, 5, 16, max_model_len=4096, async_scheduling=False)


def test_a_chunk_stands_behind_those_before_it_in_the_list_that_are_still_there() -> None:
    rng = np.random.default_rng(5)
    first = np.sort(rng.integers(0, 60, 300))
    last = first + rng.integers(0, 40, 300)

    def there(i: int, at: int) -> int:
        return 1 + int((last[:i] >= at).sum())

    at_first, at_last = Ranks().of(first, last)
    assert at_first.tolist() == [there(i, first[i]) for i in range(300)]
    assert at_last.tolist() == [there(i, last[i]) for i in range(300)]
    stays = Stays(slice(0, 300), first.astype(np.int32), last.astype(np.int32))
    assert stays.ranks_at_last().tolist() == at_last.tolist()
    pieces, ranks = Ranks(), []
    for low, high in ((0, 7), (7, 150), (150, 300)):
        ranks += pieces.of(first[low:high], last[low:high])[1].tolist()
    assert ranks == at_last.tolist()


def test_drafts_are_of_no_use_where_at_most_one_token_is_missing() -> None:
    rounds, known, earlier = np.array([0, 1, 3, 3]), np.array([9, 9, 9, 8]), np.array([8, 8, 8, 6])
    most, certain = np.full(4, 10), np.array([False, False, True, True])
    assert unused_places(0, rounds, known, earlier, most, certain).tolist() == [-1, 0, 2, -1]
    behind = unused_places(1, rounds, known, earlier, most, certain).tolist()
    assert behind == [0, 1, 2, -1], "asynchronous: one row later, or the last where none follows"


def test_a_calendar_holds_the_longest_row_from_its_edge_on() -> None:
    rules = Footprints.of(ENGINE, 100)
    assert rules is not None
    for longest in (1, 5000, 100_000):
        calendar = Calendar(rules, longest, learns=False)
        assert calendar.edge >= longest + LONGEST_WINDOW
        assert len(calendar.row) - calendar.edge >= longest + LONGEST_WINDOW
    assert len(calendar.row) == 3 * (100_000 + LONGEST_WINDOW)


def test_slots_of_layers_of_several_kinds() -> None:
    layout = KvLayout(window_tokens=100, window_per_1024=512, sequence_slots=7)
    assert [layout.held(n) for n in (0, 60, 100, 101, 300)] == [7, 97, 157, 158, 357]
    assert layout.held_each(np.array([0, 60, 100, 101, 300])).tolist() == [7, 97, 157, 158, 357]
    assert [layout.growth(n) for n in (0, 1, 2, 60)] == [1, 2, 4, 91]
    for have in (0, 1, 59, 100):
        assert all(layout.held(have + n) - layout.held(have) <= layout.growth(n) for n in range(120))


def test_blocks_of_many_are_those_of_each() -> None:
    ends = np.arange(1, 200)
    for layout in (None, KvLayout(window_tokens=50, window_per_1024=512, sequence_slots=3)):
        rules = SchedulerRules.of(replace(ENGINE, kv_layout=layout))
        assert rules.blocks_each(ends).tolist() == [rules.blocks(int(end)) for end in ends]
        admitted = rules.blocks_at_admission_each(ends).tolist()
        assert admitted == [rules.blocks_at_admission(int(end)) for end in ends]
        held = (lambda n: n) if layout is None else layout.held
        assert [rules.most_slots(n) for n in (1, 10, 4096)] == [held(n - 1) for n in (1, 10, 4096)]


def test_a_stay_whose_prefill_came_in_pieces_holds_their_blocks() -> None:
    rules = Footprints.of(ENGINE, 100)
    assert rules is not None
    row = np.array([rules.prefilling(2), 0, 5])
    stay = Stay(0, 20, 22, 3, 20, 2, 1, 1, None, None, row, None, -1)
    more = stay.holding(5, rules)
    assert stay.holding(2, rules) is stay
    assert more.blocks == 5 and more.row.tolist() == [row[0] - (3 << rules.packing.blocks), 0, 5]
    assert stay.row.tolist() == row.tolist()


def test_a_second_has_its_chunks_and_whoever_was_there_in_it() -> None:
    def counted(sent: list[float], ttft: list[float], e2el: list[float]) -> Counted:
        one = np.ones(len(sent), dtype=np.int64)
        return Counted(np.array(sent), np.array(ttft), np.array(e2el), np.array(e2el), one, one, one)

    seconds = Seconds(10.0, receive_s=0.5)
    seconds.add_requests(counted([10.2, 11.5, 11.9], [1.5, 0.3, 0.0], [3.0, 0.4, 0.0]))
    seconds.add_iterations(np.array([11.6, 13.0]), np.array([4, 1]))
    assert seconds._chunks[:4].tolist() == [0, 3, 4, 1]
    assert seconds._arrived[:4].tolist() == [1, 2, 0, 0]
    assert seconds._left[:4].tolist() == [0, 2, 0, 1]


def test_figures_of_a_class_are_milliseconds_and_tokens_a_round() -> None:
    class Fixed:
        def __init__(self, mean_s: float, p99_s: float) -> None:
            self._mean_s, self._p99_s = mean_s, p99_s

        def mean(self) -> float:
            return self._mean_s

        def std(self) -> float:
            return 0.0

        def percentiles(self, percents: Any) -> list[float]:
            assert list(percents) == [99.0]
            return [self._p99_s]

    counts = {"completed": 3, "output_tokens": 40, "accepted": 6, "verifications": 4, "attainment": 0.75}
    sums: Any = SimpleNamespace(**counts, impatient=False)
    found = ClassFigures.of(sums, Fixed(0.25, 0.5), Fixed(0.125, 2.0), Fixed(3.0, 4.0)).as_dict()
    assert list(found.values()) == [3.0, 40.0, 250.0, 500.0, 125.0, 2000.0, 2.5, 3000.0, 4000.0, 0.75]
    sums.verifications, sums.attainment, none = 0, None, Fixed(0.0, 0.0)
    idle = ClassFigures.of(sums, none, none, none)
    assert idle.acceptance_length == 1.0 and "slo_attainment" not in idle.as_dict()


def test_tokens_behind_the_stop_token_are_all_one_and_the_same() -> None:
    sequence = Sequence(4, 10, 8, stop_at=3)
    prompt, out = (("in", 4), 0, 10), ("out", 4)
    assert list(tokens_of(sequence, 7)) == [(("in", 4), 0, 7)]
    assert list(tokens_of(sequence, 12)) == [prompt, (out, 0, 2)]
    assert list(tokens_of(sequence, 13)) == [prompt, (out, 0, 2), ("stop", 0, 1)]
    assert list(tokens_of(sequence, 15)) == [prompt, (out, 0, 2), ("stop", 0, 3)]
    assert list(tokens_of(Sequence(4, 10, 8), 15)) == [prompt, (out, 0, 5)]


def test_new_outputs_are_a_node_of_their_own_behind_what_was_there() -> None:
    tree = RadixTree(1, False)
    tree.insert((("a", 0, 6),), 6)
    node, found = tree.insert((("a", 0, 6), ("b", 0, 5)), 8)
    assert found == 6 and node.units == 3 and node.key == (("b", 2, 5),)
    assert node.parent is not None and node.parent.key == (("b", 0, 2),)
    whole, found = tree.insert((("a", 0, 6), ("c", 0, 2)), 8)
    assert (found, whole.units) == (6, 2)
    tree.check()


@pytest.mark.parametrize(("left", "thrown"), [(30, []), (40, [1]), (29, []), (90, [1])])
def test_somebody_less_urgent_makes_way_if_that_is_just_enough(left: int, thrown: list[int]) -> None:
    running = [Sequence(1, 5, 60, priority=0), Sequence(2, 5, 60, priority=9)]
    waiting, batch = Sequence(3, 40, 50, priority=10), SimpleNamespace(displaced=[])
    out: list[Sequence] = []
    scheduler: Any = SimpleNamespace(
        sglang=SimpleNamespace(
            schedule_low_priority_values_first=False, priority_scheduling_preemption_threshold=5
        ),
        running=running,
        _looked_at={3: 40},
        _throw_out=lambda other, place: out.append(other),
    )
    adder: Any = SimpleNamespace(left=left, ratio=50 / 60, promised=100.0)
    got = SglangScheduler._displace(scheduler, adder, waiting, batch)  # type: ignore[arg-type]
    assert got == bool(thrown) and [s.id for s in out] == [s.id for s in batch.displaced] == thrown
    assert [s.id for s in scheduler.running] == [n for n in (1, 2) if n not in thrown]
    assert adder.promised == pytest.approx(100.0 - 50.0 * len(thrown))


def test_a_plain_decode_takes_one_token_each_and_asks_for_a_page_each() -> None:
    asked: list[tuple[str, int]] = []
    held = {n: SimpleNamespace(committed=10 * n) for n in (1, 2)}
    pool = SimpleNamespace(
        held=held,
        make_free=lambda tokens: asked.append(("free", tokens)),
        grow=lambda holding, tokens: asked.append(("grow", tokens)),
    )
    scheduler: Any = SimpleNamespace(rules=SimpleNamespace(reserve=0, page=16), pool=pool)
    SglangScheduler._reserve(scheduler, [Sequence(1, 5, 5), Sequence(2, 5, 5)])
    assert asked == [("free", 32), ("grow", 11), ("grow", 21)]
    assert [each.committed for each in held.values()] == [11, 21]


def test_the_smallest_draw_is_half_a_step_from_nought(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "mix", lambda bits: np.zeros_like(bits))
    x = bursts.deviations_each(bursts.Burst(sigma=2.0, rho=0.0), 3, np.array([5]), 2)
    expected = normal_quantile(np.array([2.0**-54]))[0]
    assert x[:, 0] == pytest.approx([2.0 * expected] * 2, rel=1e-12)


@pytest.mark.parametrize("tree", TREES)
def test_slots_kept_are_those_of_the_tokens_that_stayed(tree: str) -> None:
    assert rollback_of(tree, rounds=0) == Rollback(0, 0, 0, 0, True)
    found = rollback_of(tree, rounds=40)
    assert found.whole and found.rounds == 40
    assert found.rounds <= found.kept <= found.written and found.moved <= found.kept


def test_a_bandit_tries_every_arm_then_the_highest_bound() -> None:
    bandit = Bandit(2, exploration=0.3)
    assert bandit.choose(5, 0, 0) == 2

    def learn(arm: int, tokens: int, seconds: float) -> None:
        bandit.learn(Seen(((arm, tokens, 5),), 5, False, seconds))

    learn(2, 3, 0.1)
    assert bandit.choose(5, 0, 0) == 1 and bandit.choose(9, 0, 0) == 2, "by size of batch"
    learn(1, 2, 0.1)
    learn(0, 1, 0.1)
    learn(1, 2, 0.2)
    learn(1, 2, 0.4)
    assert bandit._means[3] == pytest.approx([50.0, (100 + 50 + 25) / 3, 150.0])
    bandit.learn(Seen(((0, 1, 5),), 5, True, 0.1))
    bandit.learn(Seen(((0, 1, 5), (1, 1, 5)), 10, False, 0.1))
    assert bandit._pulls[3] == [1, 3, 1]
    assert bandit.choose(5, 0, 0) == 2
    for _ in range(60):
        learn(2, 1, 0.1)
    bounds = [
        mean / max(bandit._means[3]) + 0.3 * sqrt(log(65) / pulls)
        for mean, pulls in zip(bandit._means[3], (1, 3, 61), strict=True)
    ]
    assert bandit.choose(5, 0, 0) == int(np.argmax(bounds))


def test_a_new_step_counts_a_twentieth() -> None:
    assert SurvivalEstimate(2).weight == 0.05 and SurvivalEstimate(2).conditional == [0.7, 0.7]


def test_of_a_branch_the_root_is_used_after_its_leaf_and_goes_last() -> None:
    """Least recently used leaves go first; a parent whose leaf is gone counts as used just before it."""
    tree = RadixTree(1, False)
    tree.insert((("a", 0, 4),), 4)
    tree.insert((("a", 0, 4), ("b", 0, 3)), 7)
    tree.insert((("c", 0, 5),), 5)
    tree.match((("a", 0, 4), ("b", 0, 3)))
    assert tree.evict(1) == 5, "c: the branch of a and b was looked up after it"
    assert tree.evict(1) == 3 and tree.evict(1) == 4, "b, then a"
    tree.insert((("a", 0, 4),), 4)
    tree.insert((("a", 0, 4), ("b", 0, 3)), 7)
    tree.insert((("d", 0, 6),), 6)
    assert tree.evict(3) == 3 and tree.evict(1) == 4, "b, then a that was used before d"
    assert tree.evict(1) == 6
    tree.check()


@pytest.mark.parametrize(("drafts", "passes"), [(0, (0, 0)), (1, (1, 1)), (3, (3, 1))])
def test_behind_prompts_a_drafter_runs_once_if_there_is_one(drafts: int, passes: tuple[int, int]) -> None:
    rules: Any = SimpleNamespace(draft_passes=drafts)
    assert (SglangRules.passes(rules, None, False), SglangRules.passes(rules, None, True)) == passes
    assert SglangRules.passes(rules, 2, False) == min(drafts, 2)
    assert SglangRules.passes(rules, 0, False) == min(drafts, 1), "one pass at least writes the KV"


def step_rows(**columns: list[float]) -> dict[str, Any]:
    """Steps in which all else is 0, one after another."""
    n = len(next(iter(columns.values())))
    names = ("decode_sequences", "prefill_sequences", "running", "tokens", "kv_blocks_used", "logit_rows")
    rows: dict[str, Any] = {name: np.zeros(n, dtype=np.int64) for name in (*names, "draft_tokens", "replica")}
    rows |= {"start_s": np.arange(n) * 1.0, "end_s": np.arange(n) + 0.25}
    return rows | {name: np.array(values) for name, values in columns.items()}


@pytest.mark.parametrize(
    ("values", "said"),
    [([0, 3, 17, 20], "17 sequences run, of 16"), ([0, 0, -1, 2], "-1 sequences run, of 16")],
)
def test_a_breach_names_the_first_step_that_broke_the_law(values: list[float], said: str) -> None:
    laws: Any = SimpleNamespace(rules=SchedulerRules.of(ENGINE), scenario=SimpleNamespace(engine=ENGINE))
    laws._breach = lambda law, what, rows, at, requests: Breach(law, f"{what} in step {at}")
    with pytest.raises(Breach, match=f"{said} in step 2"):
        StepLaws._limits(laws, step_rows(running=values), None)


def test_a_breach_of_the_datasheet_says_what_the_step_took_and_what_it_would_take() -> None:
    least = SimpleNamespace(bytes_s=lambda rows: np.array([0.1, 0.25, 0.3]), flop_s=lambda rows: np.zeros(3))
    laws: Any = SimpleNamespace(least=least, _scaled=lambda: "")
    laws._breach = lambda law, what, rows, at, requests: Breach(law, f"{what} in step {at}")
    with pytest.raises(
        Breach, match=r"bytes/s: at least 300 ms of work by the datasheet, in 250 ms in step 2"
    ):
        StepLaws._datasheet(laws, step_rows(tokens=[1, 1, 1]), None)


def test_where_a_policy_reads_kv_two_words_of_blocks_must_fit_in_one_integer() -> None:
    """The second packed word holds tokens above its block bits: 31 of them at most."""
    engine = replace(ENGINE, num_gpu_blocks=1_000_000)
    for longest in (1000, 100_000, 4_000_000):
        found = Footprints.of(replace(engine, max_model_len=2 * longest), longest, True)
        plain = Footprints.of(replace(engine, max_model_len=2 * longest), longest, False)
        assert plain is not None
        fits = not plain.packing.wide and 2 * plain.packing.blocks <= 63
        assert (found is not None) == fits
