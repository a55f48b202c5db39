"""Recorded luck, free drafts, the best K and the least tree, worked by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specfleet.hardware.stepcost import StepShape
from specfleet.sim.speculation import luck
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.sim.speculation.bursts import HotCold, states_each, two_state
from specfleet.sim.speculation.exactness import direct_output
from specfleet.sim.speculation.families import EAGLE, LOOK_UP
from specfleet.sim.speculation.luck import bits64, key
from specfleet.sim.speculation.oracle import FreeDrafts
from specfleet.sim.speculation.own import OwnProcess, sampled_survival
from specfleet.sim.speculation.policies_learning import AcceptanceGate, AdaptiveTiers, Goodput, SloBudget
from specfleet.sim.speculation.policy import Seen
from specfleet.sim.speculation.processes import process
from specfleet.sim.speculation.replay import placed, rounds_of
from specfleet.sim.speculation.tree_survival import SECOND_RANK, rank_shares
from specfleet.sim.speculation.trees import ConfidenceTree


def test_a_trace_is_repeated_to_the_last_position_and_no_further() -> None:
    assert [placed(b"abc", n) for n in (0, 2, 3, 6)] == [b"a", b"abc", b"abca", b"abcabca"]
    assert rounds_of(bytes([9, 1, 0, 2]), 4, 5) == bytes([1, 2]), "the prefill writes one"
    assert rounds_of(bytes([9, 1, 0, 2]), 4, 5, start=0) == bytes([4])


def test_an_interval_of_a_family_has_two_degrees_more_than_drafters() -> None:
    assert (EAGLE.degrees, LOOK_UP.degrees) == (8.0, 3.0)


def test_steps_of_the_oracle_cost_what_they_would_without_drafts() -> None:
    asked: list[Any] = []
    cost: Any = SimpleNamespace(seconds=asked.append, terms=asked.append)
    shape = StepShape(12, 3, 0, 12, 9, 500, 500, 0, 3)
    free = FreeDrafts(cost)
    free.seconds(shape)
    free.terms({name: np.array([value, value]) for name, value in shape._asdict().items()})
    single, columns = asked
    assert single == StepShape(3, 3, 0, 3, 0, 491, 491, 0, 0)
    assert {name: column.tolist() for name, column in columns.items()} == {
        name: [value] * 2 for name, value in single._asdict().items()
    }


def test_goodput_is_the_most_expected_tokens_a_second_of_whole_rows() -> None:
    asked: list[StepShape] = []

    def seconds(shape: StepShape) -> float:
        asked.append(shape)
        return 1.0 + 0.05 * shape.draft_tokens / shape.decode_sequences

    policy = Goodput(3, SimpleNamespace(seconds=seconds))
    rates = [(1 + sum(0.7**i for i in range(1, k + 1))) / (1 + 0.05 * k) for k in range(4)]
    assert policy.choose(5, 900, 0) == int(np.argmax(rates)) == 3
    assert asked == [StepShape(5 * (1 + k), 5, 0, 5 * (1 + k), 5 * k, 900, 900, 0, k or 1) for k in range(4)]
    assert policy.choose(0, 0, 0) == 3
    dear = Goodput(3, SimpleNamespace(seconds=lambda shape: float(shape.tokens)))
    assert dear.choose(5, 900, 0) == 0


@pytest.mark.parametrize("numbers", [(0, 2, 4), (3, 0, 4), (3, 2, 1), (3, 2, 0)])
def test_a_tree_has_a_pass_a_branch_and_a_draft_at_least(numbers: tuple[int, int, int]) -> None:
    assert ConfidenceTree(3, 2, 2, 0.5).num_draft_tokens == 2
    with pytest.raises(ValueError, match="must be positive"):
        ConfidenceTree(3, 2, 2, 0.0)
    with pytest.raises(ValueError, match="must be positive"):
        ConfidenceTree(*numbers)


def test_what_the_first_rejects_goes_to_the_ranks_behind_it() -> None:
    assert rank_shares(4, (0.6, 0.2, 0.1, 0.05)) == pytest.approx((0.2 / 0.4, 0.1 / 0.4, 0.05 / 0.4))
    assert rank_shares(3, (0.75, 0.1, 0.05, 0.01)) == pytest.approx((0.1 / 0.25, 0.05 / 0.25))
    assert rank_shares(3, (1.0, 0.0, 0.0)) == (0.0, 0.0), "nothing is rejected"
    assert rank_shares(4) == (SECOND_RANK, SECOND_RANK / 2, SECOND_RANK / 4) and rank_shares(1) == ()
    with pytest.raises(ValueError, match="for 2 ranks, the tree has 3"):
        rank_shares(3, (0.6, 0.2))


def test_a_factor_scales_each_draft_of_a_hot_step_up_to_certainty() -> None:
    """What is certain is no more than that: the draft behind it is not scaled by what was cut off."""
    spec = AcceptanceSpec(by_position=(0.45, 0.15, 0.12), hot_cold=HotCold(0.6, 0.2, 0.9))
    drawing: Any = process(spec, 3, 0)
    share = spec.hot_cold.chain(0.45)[0]  # type: ignore[union-attr]
    each = np.array([0.45 / share, 0.15 / 0.45, 0.12 / 0.15])
    for factor in (0.5, 1.0, 1.3, 2.5):
        expected = np.multiply.accumulate(np.minimum(each * factor, 1.0))
        assert drawing._scaled(0, factor) == pytest.approx(expected)


def test_every_purpose_has_luck_of_its_own() -> None:
    """Splitmix64's numbers for a seed and a purpose, which every run of the same seed repeats."""
    purposes = [luck.LEVEL, luck.ROUND, luck.PROPOSAL, luck.ROUTE]
    purposes += [luck.BURST, luck.TIE, luck.VAIN, luck.WORDS]
    assert purposes == [1, 2, 3, 4, 5, 6, 7, 8], "another number is other luck in every run"
    streams = {key(seed, request, purpose) for seed in (0, 1) for request in (0, 1) for purpose in purposes}
    assert len(streams) == 32
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert bits64(0, 0, 3).tolist() == published, "splitmix64 from 0, as its authors print it"


def test_acceptance_of_a_process_of_ones_own_is_asked_of_256_requests_and_64_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int, int, float]] = []

    class Alternating:
        def accepted(self, request_id: int, rounds: int, prompt: int, temperature: float) -> np.ndarray:
            asked.append((request_id, rounds, prompt, temperature))
            return np.arange(rounds) % 3

    monkeypatch.setattr(
        "specfleet.sim.speculation.own.PROCESSES", {"alternating": lambda k, seed: Alternating()}
    )
    shares = sampled_survival(OwnProcess("alternating"), 2)
    assert asked == [(request, 64, 1024, 0.0) for request in range(256)]
    assert shares.tolist() == [42 / 64, 21 / 64]


def test_direct_sampling_writes_fifty_tokens_a_sequence() -> None:
    assert direct_output(20_049).tokens == 20_000


@pytest.mark.parametrize(
    ("budget", "drafts"), [(0, [0, 0, 0]), (2, [2, 0, 0]), (4, [3, 0, 1]), (9, [3, 3, 3])]
)
def test_of_a_budget_those_behind_have_k_in_turn_and_the_rest_the_most_confident(
    budget: int, drafts: list[int]
) -> None:
    policy = SloBudget(3, 0.1, budget)
    confident = [(0.9, 0.8, 0.7), (0.5, 0.4, 0.3), (0.7, 0.6, 0.55)]
    sequences = [
        SimpleNamespace(id=i, request=SimpleNamespace(confidence=c)) for i, c in enumerate(confident)
    ]
    policy._survival = SimpleNamespace(of=lambda batch, ids: np.array(confident))  # type: ignore[assignment]
    batch: Any = SimpleNamespace(
        ids=lambda: np.arange(3), written=lambda: np.array([5, 1000, 1000]), sequences=sequences
    )
    policy.plan_rows(batch, 0, 0.0)
    assert policy.plan_rows(batch, 0, 1.0).tolist() == drafts, "the first has five tokens in a second"


def test_hot_and_cold_steps_one_by_one() -> None:
    """A draw below both chances is hot, above both cold; in between as before, or the opposite."""
    rng = np.random.default_rng(5)
    for share, stay, enter in ((0.3, 0.8, 0.2), (0.6, 0.1, 0.9), (0.5, 0.5, 0.5)):
        draws = rng.random(200)
        states = [draws[0] < share]
        for draw in draws[1:]:
            states.append(draw < (stay if states[-1] else enter))
        starts, counts = np.array([0]), np.array([200])
        one = (np.array([value]) for value in (share, stay, enter))
        assert states_each(draws, starts, counts, *one).tolist() == states
        assert np.frombuffer(two_state(draws, share, stay, enter), np.bool_).tolist() == states[1:]


def test_tiers_move_by_the_mean_of_what_rows_accept() -> None:
    """Two rows of three drafts that accept 1 and 3: a mean of 2, of which a fifth counts."""
    policy = AdaptiveTiers(7, tiers=(1, 3, 7), warmup=1, interval=1)
    seen = Seen(((3, 2, 1), (3, 4, 1), (0, 1, 5)), rows=7, prompts=False, seconds=0.01)
    policy.learn(seen)
    assert policy.average == pytest.approx(3.0 + 0.2 * ((1 + 3) / 2 - 3.0)) and policy.current == 7
    for average, tier in ((0.76, 3), (0.74, 1)):  # 0.25 below the accepted drafts of the tier below
        policy.current, policy.average, policy.smoothing = 3, average, 0.0
        policy.learn(seen)
        assert policy.current == tier
    for average, tier in ((2.01, 7), (2.0, 3)):
        policy.current, policy.average = 3, average
        policy.learn(seen)
        assert policy.current == tier


def test_a_gate_counts_rounds_of_one_draft_and_of_one_token_and_no_others() -> None:
    gate = AcceptanceGate(3, window=1, threshold=0.1, cooldown=2)
    rows = {"drafts": [1, 0, 3, 3], "sampled": [1, 1, 0, 2]}
    batch: Any = SimpleNamespace(ids=lambda: np.arange(4), drafts=lambda: np.array(rows["drafts"]))
    gate.observe_rows(batch, np.array(rows["sampled"]), 0.01)
    assert gate.plan_rows(batch, 0, 0.0).tolist() == [0, 3, 3, 3], "the first alone had a draft, all rejected"
    assert gate.plan_rows(batch, 0, 0.0).tolist() == [0, 3, 3, 3]
    assert gate.plan_rows(batch, 0, 0.0).tolist() == [3, 3, 3, 3]
