"""Rounds that resemble the one before: what was asked for still comes out, in runs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.sim.speculation.acceptance import LEVELS, Acceptance, AcceptanceSpec, LowAtom, survival_table
from specfleet.sim.speculation.bursts import Burst, BurstSpread, HotCold, deviations, two_state
from specfleet.sim.speculation.luck import LEVEL, bits_once
from specfleet.sim.speculation.processes import BurstAcceptance, HotColdAcceptance, process
from specfleet.sim.speculation.spread import pooled_length

CODE_EDIT = (0.74, 0.57, 0.43, 0.33, 0.27)
COPYING = (0.3052, 0.2760, 0.2491, 0.2370, 0.2216)
RUNS = HotCold(stay=0.792, enter=0.102, accept_hot=0.93)
RATES = st.lists(st.floats(0.05, 0.95), min_size=1, max_size=4)


def one_of_each_level(seed: int, step: int = 1) -> list[int]:
    """Request ids, one for every `step`-th of the equally likely levels."""
    found: dict[int, int] = {}
    request_id = 0
    while len(found) < LEVELS:
        found.setdefault(bits_once(seed, request_id, LEVEL) >> 54, request_id)
        request_id += 1
    return [found[level] for level in range(step // 2, LEVELS, step)]


def written(accepted: npt.NDArray[np.uint8], tokens: int) -> npt.NDArray[np.uint8]:
    """The rounds in which a request writes its first `tokens` tokens."""
    emitted = np.cumsum(1 + accepted.astype(np.int64))
    return accepted[: int(np.searchsorted(emitted, tokens)) + 1]


def by_step(runs: Acceptance, request_id: int, steps: int) -> npt.NDArray[np.uint8]:
    """Accepted drafts of each sampling step; none where none was found."""
    found = runs.proposals(request_id, steps)
    assert found is not None
    here = np.frombuffer(found, dtype=np.uint8) == 1
    drawn = np.frombuffer(runs.accepted(request_id, 100, steps), dtype=np.uint8)
    assert len(drawn) == here.sum()
    accepted = np.zeros(steps, dtype=np.uint8)
    accepted[here] = drawn
    return accepted


@given(RATES, st.floats(3, 60), st.floats(0.05, 1.5))
@settings(max_examples=8, deadline=None)
def test_survival_pooled_over_bursty_rounds_is_what_was_measured(
    rates: list[float], concentration: float, sigma: float
) -> None:
    asked = tuple(sorted(rates, reverse=True))
    spec = AcceptanceSpec(by_position=asked, concentration=concentration, burst=Burst(0.2, sigma))
    table = survival_table(spec, len(asked))
    weights = 1 / (1 + table.sum(axis=1))
    assert (weights @ table) / weights.sum() == pytest.approx(asked, rel=3e-3, abs=3e-4)


@pytest.mark.parametrize("low_atom", [None, LowAtom(0.06, 0.13, 0.45)])
def test_a_run_of_bursty_requests_pools_to_what_was_measured(low_atom: LowAtom | None) -> None:
    spec = AcceptanceSpec(by_position=CODE_EDIT, concentration=18.0, low_atom=low_atom, burst=Burst(0.3, 0.8))
    bursty = process(spec, 5, seed=1)
    rounds = [
        written(np.frombuffer(bursty.accepted(request, 100, 3000), dtype=np.uint8), 3000)
        for request in one_of_each_level(seed=1, step=4)
    ]
    pooled = np.concatenate(rounds)
    assert [np.mean(pooled >= i) for i in range(1, 6)] == pytest.approx(CODE_EDIT, rel=8e-3)


def test_a_length_comes_out_with_bursts_too() -> None:
    spec = AcceptanceSpec(acceptance_length=2.3, measured_at_k=3, concentration=12.0, burst=Burst(0.2, 1.0))
    assert pooled_length(survival_table(spec, 3)) == pytest.approx(2.3, abs=1e-3)


def test_a_request_keeps_its_own_acceptance_on_average_over_its_rounds() -> None:
    plain = AcceptanceSpec(conditional_acceptance=0.7, concentration=9.0)
    bursty = AcceptanceSpec(conditional_acceptance=0.7, concentration=9.0, burst=Burst(0.4, 1.2))
    first, with_bursts = survival_table(plain, 3), survival_table(bursty, 3)
    assert with_bursts[:, 0] == pytest.approx(first[:, 0], abs=2e-4)
    assert (with_bursts[:, 1:] >= first[:, 1:] - 1e-6).all(), "drafts of one round move together"


def test_without_scatter_bursts_change_nothing() -> None:
    spec = AcceptanceSpec(by_position=CODE_EDIT, concentration=18.0)
    still = AcceptanceSpec(by_position=CODE_EDIT, concentration=18.0, burst=Burst(0.5, 1e-6))
    assert survival_table(still, 5) == pytest.approx(survival_table(spec, 5), abs=2e-4)
    plain, same = (np.frombuffer(process(s, 5, 3).accepted(8, 10, 2000), np.uint8) for s in (spec, still))
    assert np.mean(plain == same) > 0.995


@pytest.mark.parametrize("rho", [0.0, 0.2, 0.8])
def test_deviations_are_an_autoregression_of_their_correlation(rho: float) -> None:
    x = deviations(Burst(rho, 0.7), seed=3, request_id=11, rounds=100_000)
    assert x.std() == pytest.approx(0.7, rel=0.03)
    assert np.corrcoef(x[1:], x[:-1])[0, 1] == pytest.approx(rho, abs=0.02)
    starts = [deviations(Burst(0.8, 0.7), 3, request, 1)[0] for request in range(3000)]
    assert np.std(starts) == pytest.approx(0.7, rel=0.05), "the first round is like any other"


@given(st.integers(0, 2**63), st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 60))
@settings(max_examples=15, deadline=None)
def test_more_bursty_rounds_do_not_change_the_first_ones(
    seed: int, request: int, few: int, more: int
) -> None:
    assert (
        deviations(Burst(0.6, 1.0), seed, request, few + more)[:few]
        == deviations(Burst(0.6, 1.0), seed, request, few)
    ).all()
    spec = AcceptanceSpec(by_position=COPYING, hot_cold=RUNS, concentration=22.0)
    runs = process(spec, 5, seed)
    longer, shorter = (runs.proposals(request, steps) for steps in (few + more, few))
    assert longer is not None and shorter is not None and longer.startswith(shorter)
    assert runs.accepted(request, 9, few + more).startswith(runs.accepted(request, 9, few))


def test_bursts_make_the_next_round_resemble_this_one() -> None:
    spec = AcceptanceSpec(conditional_acceptance=0.65, burst=Burst(0.8, 1.0))
    rounds = np.frombuffer(process(spec, 3, seed=2).accepted(4, 100, 60_000), dtype=np.uint8).astype(float)
    assert np.corrcoef(rounds[1:], rounds[:-1])[0, 1] > 0.1


def test_a_longer_prompt_lowers_bursty_acceptance_by_its_factor() -> None:
    nodes = ((1000.0, 1.0), (16000.0, 0.5))
    spec = AcceptanceSpec(conditional_acceptance=0.8, burst=Burst(0.1, 0.9), context_multiplier=nodes)
    bursty = process(spec, 2, seed=5)
    assert isinstance(bursty, BurstAcceptance)
    accepted = np.frombuffer(bursty.accepted(3, 16000, 100_000), dtype=np.uint8)
    assert np.mean(accepted >= 1) == pytest.approx(0.4, abs=6e-3)
    assert bursty.confidence(3, 16000)[0] == pytest.approx(0.4, abs=1e-3)


@given(st.floats(0, 1), st.floats(0, 0.95))
@settings(max_examples=10, deadline=None)
def test_a_chain_of_any_share_and_memory_has_both(share: float, memory: float) -> None:
    model = HotCold(stay=memory, enter=0.0, accept_hot=1.0)
    draws = np.random.default_rng(0).random(60_001)
    states = np.frombuffer(two_state(draws, *model.chain(share)), dtype=np.uint8)
    assert states.mean() == pytest.approx(share, abs=0.06)
    if 0.05 < share < 0.95:
        assert np.corrcoef(states[1:], states[:-1])[0, 1] == pytest.approx(memory, abs=0.05)


def test_copying_requests_pool_to_what_was_measured_and_copy_in_runs() -> None:
    runs = process(AcceptanceSpec(by_position=COPYING, hot_cold=RUNS, concentration=22.0), 5, seed=1)
    steps = [written(by_step(runs, request, 3000), 3000) for request in one_of_each_level(seed=1, step=4)]
    pooled = np.concatenate(steps)
    assert [np.mean(pooled >= i) for i in range(1, 6)] == pytest.approx(COPYING, rel=0.02)
    hits = [part > 0 for part in steps]
    after = np.concatenate([hit[1:][hit[:-1]] for hit in hits])
    assert after.mean() == pytest.approx(0.754, abs=0.015), "measured on code edits"
    missed = np.concatenate([hit[1:][~hit[:-1]] for hit in hits])
    assert missed.mean() == pytest.approx(0.110, abs=0.01)


def test_cold_steps_may_propose_in_vain_and_accept_nothing_more() -> None:
    vain = HotCold(RUNS.stay, RUNS.enter, RUNS.accept_hot, propose_cold=0.5)
    spec, wasteful = (AcceptanceSpec(by_position=COPYING, hot_cold=model) for model in (RUNS, vain))
    exact, more = (process(s, 5, seed=4) for s in (spec, wasteful))
    few, many = (np.frombuffer(p.proposals(6, 50_000) or b"", dtype=np.uint8).mean() for p in (exact, more))
    assert few == pytest.approx(COPYING[0] / 0.93, abs=0.01)
    assert many == pytest.approx(few + (1 - few) / 2, abs=0.01)
    assert by_step(more, 6, 50_000).mean() == pytest.approx(sum(COPYING), rel=0.04)


def test_temperature_scales_what_a_hot_step_accepts_and_not_how_many_there_are() -> None:
    spec = AcceptanceSpec(by_position=COPYING, hot_cold=RUNS, temperature_multiplier=((0.0, 1.0), (1.0, 0.5)))
    runs = process(spec, 5, seed=4)
    assert isinstance(runs, HotColdAcceptance)
    drawn = np.frombuffer(runs.accepted(6, 100, 60_000, temperature=1.0), dtype=np.uint8)
    assert np.mean(drawn >= 1) == pytest.approx(0.93 / 2, abs=0.01)
    found = runs.proposals(6, 60_000)
    assert found is not None and len(drawn) == sum(found)


def test_a_process_without_bursts_is_the_plain_one() -> None:
    spec = AcceptanceSpec(by_position=CODE_EDIT, concentration=18.0)
    plain = process(spec, 5, seed=1)
    assert type(plain) is Acceptance and plain.independent_rounds and plain.proposals(7, 500) is None
    assert plain.accepted(7, 100, 500) == Acceptance(spec, 5, 1).accepted(7, 100, 500)
    for other in (
        AcceptanceSpec(by_position=CODE_EDIT, burst=Burst(0.1, 0.5)),
        AcceptanceSpec(by_position=COPYING, hot_cold=RUNS),
    ):
        assert not process(other, 5, seed=1).independent_rounds
        with pytest.raises(ValueError, match="rounds of this specification are not alike"):
            Acceptance(other, 5, seed=1)


def test_bursty_requests_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be reached"):
        BurstSpread(20.0, LowAtom(0.2, 0.0, 0.1), Burst(0.1, 0.5)).pooled((0.95,))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Burst(1.0, 0.5), "burst.rho"),
        (lambda: Burst(0.1, 0.0), "burst.sigma"),
        (lambda: HotCold(0.2, 0.5, 0.9), "enter <= stay"),
        (lambda: HotCold(0.5, 0.2, 0.0), "accept_hot"),
        (lambda: HotCold(0.5, 0.2, 0.9, 1.5), "propose_cold"),
        (lambda: AcceptanceSpec(by_position=COPYING, hot_cold=RUNS, burst=Burst(0.1, 0.5)), "remove burst"),
        (
            lambda: AcceptanceSpec(by_position=COPYING, hot_cold=RUNS, proposal_probability=0.4),
            "proposal_",
        ),
        (
            lambda: AcceptanceSpec(
                by_position=COPYING, hot_cold=RUNS, context_multiplier=((100.0, 1.0), (200.0, 0.5))
            ),
            "no training length",
        ),
    ],
)
def test_bursts_that_make_no_sense_are_refused_by_name(make: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()  # type: ignore[operator]
