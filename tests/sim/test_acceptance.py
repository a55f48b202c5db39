"""What a drafter achieves: conversions, the spread between requests, and luck as a pure function."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specfleet.sim.speculation.acceptance import (
    LEVELS,
    Acceptance,
    AcceptanceSpec,
    LowAtom,
    always_reached,
    survival_table,
)
from specfleet.sim.speculation.luck import LEVEL, bits32, bits64, bits_once, key
from specfleet.sim.speculation.spread import beta_quantiles, pooled_length
from specfleet.sim.speculation.theory import (
    acceptance_length,
    conditional_from_length,
    expected_tokens,
    length_from_draft_rate,
    minimum_variance,
    survival,
)

ALPHAS = st.floats(0.0, 1.0)
KS = st.integers(1, 10)
SEEDS = st.integers(0, 2**63)
CODE_EDIT = (0.74, 0.57, 0.43, 0.33, 0.27)
U = (np.arange(LEVELS) + 0.5) / LEVELS


def drawn(
    process: Acceptance, request_id: int, rounds: int, prompt_tokens: int = 100
) -> npt.NDArray[np.uint8]:
    """Accepted drafts of a request's first rounds."""
    return np.frombuffer(process.accepted(request_id, prompt_tokens, rounds), dtype=np.uint8)


def survivors(accepted: npt.NDArray[np.uint8], k: int) -> list[float]:
    """Share of rounds that accept at least 1, 2, ... K drafts."""
    return [float(np.mean(accepted >= i)) for i in range(1, k + 1)]


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5).map(lambda each: tuple(sorted(each, reverse=True))),
    st.sampled_from([0.5, 4.0, 18.0, math.inf]),
    st.integers(1, 5),
)
def test_survival_that_does_not_rise_is_reached_by_some_process_and_is_its_pooled_survival(
    by_position: tuple[float, ...], concentration: float, k: int
) -> None:
    spec = AcceptanceSpec(by_position=by_position, concentration=concentration)
    assert always_reached(spec, k) == (k <= len(by_position))
    if k <= len(by_position):
        table = survival_table(spec, k)
        rounds = 1.0 / (1.0 + table.sum(axis=1))
        assert rounds @ table / rounds.sum() == pytest.approx(by_position[:k], abs=1e-9)


@pytest.mark.parametrize(
    "spec",
    [
        AcceptanceSpec(by_position=(0.9, 0.8), low_atom=LowAtom(0.3, 0.0, 0.2)),
        AcceptanceSpec(acceptance_length=2.5, measured_at_k=1),
    ],
)
def test_what_may_not_be_reached_is_refused_where_the_process_is_made(spec: AcceptanceSpec) -> None:
    assert not always_reached(spec, 2)
    with pytest.raises(ValueError, match=r"reached|outside"):
        Acceptance(spec, 2, seed=0)


@pytest.mark.parametrize(("k", "rate"), [(1, 0.75), (2, 0.656), (3, 0.578), (5, 0.458), (7, 0.371)])
def test_the_same_alpha_is_a_lower_share_of_drafts_at_longer_drafts(k: int, rate: float) -> None:
    assert (expected_tokens(0.75, k) - 1) / k == pytest.approx(rate, abs=5e-4)


@pytest.mark.parametrize(("k", "rate", "alpha"), [(3, 0.603, 0.768), (4, 0.536, 0.765), (6, 0.427, 0.760)])
def test_a_measured_drafter_has_the_same_alpha_at_every_draft_length(
    k: int, rate: float, alpha: float
) -> None:
    assert conditional_from_length(length_from_draft_rate(rate, k), k) == pytest.approx(alpha, abs=1e-3)


@pytest.mark.parametrize(
    ("k", "alphas"),
    [
        (3, (0.389, 0.509, 0.607, 0.691, 0.765, 0.832, 0.893)),
        (5, (0.509, 0.624, 0.709, 0.777, 0.834, 0.883, 0.927)),
        (8, (0.621, 0.721, 0.791, 0.843, 0.885, 0.920, 0.950)),
    ],
)
def test_alpha_by_share_of_drafts_is_the_published_table(k: int, alphas: tuple[float, ...]) -> None:
    rates = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    found = [conditional_from_length(length_from_draft_rate(rate, k), k) for rate in rates]
    assert found == pytest.approx(alphas, abs=6e-4)


def test_both_length_formulas_are_right_and_not_for_the_same_number() -> None:
    assert expected_tokens(0.75, 5) == pytest.approx(3.29, abs=5e-3)
    assert length_from_draft_rate(0.75, 5) == 4.75
    assert expected_tokens(0.65, 3) == pytest.approx(2.35, abs=5e-3)


@given(ALPHAS, KS)
def test_the_closed_form_is_the_sum_of_survivals(alpha: float, k: int) -> None:
    assert acceptance_length(survival(alpha, k)) == pytest.approx(expected_tokens(alpha, k), rel=1e-7)


@given(ALPHAS, KS)
def test_alpha_is_recovered_from_its_length(alpha: float, k: int) -> None:
    length = expected_tokens(alpha, k)
    assert expected_tokens(conditional_from_length(min(length, k + 1.0), k), k) == pytest.approx(
        length, rel=1e-7
    )


@given(ALPHAS)
def test_alpha_of_one_and_two_drafts_is_elementary(alpha: float) -> None:
    one, two = 1 + alpha, 1 + alpha + alpha**2
    assert conditional_from_length(one, 1) == pytest.approx(one - 1, abs=1e-7)
    assert conditional_from_length(two, 2) == pytest.approx((-1 + math.sqrt(4 * two - 3)) / 2, abs=1e-7)


@pytest.mark.parametrize("length", [0.99, 4.01])
def test_a_length_no_process_has_is_refused(length: float) -> None:
    with pytest.raises(ValueError, match="outside \\[1, 4"):
        conditional_from_length(length, 3)
    with pytest.raises(ValueError, match="outside \\[1, 4"):
        survival_table(AcceptanceSpec(acceptance_length=length), 3)


@given(st.data(), KS)
def test_the_minimum_variance_schedule_has_its_length_and_no_spare(data: st.DataObject, k: int) -> None:
    length = data.draw(st.floats(1, k + 1))
    rates = minimum_variance(length, k)
    assert acceptance_length(rates) == pytest.approx(length)
    assert rates == sorted(rates, reverse=True)
    assert sum(0 < rate < 1 for rate in rates) <= 1
    assert minimum_variance(3.0, 3) == [1, 1, 0]


@given(st.floats(0.05, 0.95), st.floats(1, 300))
@settings(max_examples=60, deadline=None)
def test_beta_quantiles_are_scipys(mean: float, concentration: float) -> None:
    exact = stats.beta.ppf(U, mean * concentration, (1 - mean) * concentration)
    assert np.abs(beta_quantiles(mean, concentration, U) - exact).max() < 2e-4


@given(st.floats(0, 1))
def test_infinite_concentration_is_all_alike(mean: float) -> None:
    assert (beta_quantiles(mean, math.inf, U) == mean).all()


@pytest.mark.parametrize("alpha", [0.25, 0.6, 0.9])
def test_requests_follow_the_beta_of_their_mean_and_concentration(alpha: float) -> None:
    c = 12.0
    table = survival_table(AcceptanceSpec(conditional_acceptance=alpha, concentration=c), 3)
    each = table[:, 0]
    assert np.abs(each - stats.beta.ppf(U, alpha * c, (1 - alpha) * c)).max() < 2e-3
    assert each.mean() == pytest.approx(alpha, abs=1e-3)
    assert table[:, 1:] == pytest.approx(each[:, None] ** np.array([2, 3])), "positions move together"


@given(st.lists(st.floats(0.02, 0.98), min_size=1, max_size=6), st.floats(2, 100))
@settings(max_examples=20, deadline=None)
def test_survival_pooled_over_rounds_is_what_was_measured(rates: list[float], concentration: float) -> None:
    given_rates = tuple(sorted(rates, reverse=True))
    table = survival_table(AcceptanceSpec(by_position=given_rates, concentration=concentration), len(rates))
    weights = 1 / (1 + table.sum(axis=1))
    assert (weights @ table) / weights.sum() == pytest.approx(given_rates, rel=2e-3, abs=1e-4)
    assert (np.diff(table, axis=1) <= 0).all()


def one_of_each_level(seed: int) -> list[int]:
    """Request ids, one for each of the equally likely levels."""
    found: dict[int, int] = {}
    request_id = 0
    while len(found) < LEVELS:
        found.setdefault(bits_once(seed, request_id, LEVEL) >> 54, request_id)
        request_id += 1
    return list(found.values())


def test_survival_without_a_digit_left_is_none() -> None:
    by_position = [0.03**place for place in range(1, 400)]
    with np.errstate(all="ignore"):
        table = survival_table(AcceptanceSpec(by_position=tuple(by_position), concentration=18.0), 399)
    assert np.isfinite(table).all()
    rounds = 1.0 / (1.0 + table.sum(axis=1))
    assert float(rounds @ table[:, 0] / rounds.sum()) == pytest.approx(0.03, rel=1e-6)
    assert (table[:, -1] == 0.0).all()


def test_pooled_survival_of_a_run_is_by_position_within_a_third_of_a_percent() -> None:
    spec = AcceptanceSpec(by_position=CODE_EDIT, concentration=18.0)
    process = Acceptance(spec, 5, seed=1)
    rounds = []
    for request_id in one_of_each_level(seed=1):
        accepted = drawn(process, request_id, 2000)
        emitted = np.cumsum(1 + accepted.astype(np.int64))
        rounds.append(accepted[: int(np.searchsorted(emitted, 2000)) + 1])  # everyone writes 2,000 tokens
    assert survivors(np.concatenate(rounds), 5) == pytest.approx(CODE_EDIT, rel=3e-3)


@pytest.mark.parametrize("concentration", [3.0, 18.0, math.inf])
@pytest.mark.parametrize("decay", [1.0, 0.95])
@pytest.mark.parametrize(("measured_at", "k"), [(5, 5), (5, 3), (3, 6)])
def test_a_measured_length_comes_out_at_the_drafts_it_was_measured_with(
    concentration: float, decay: float, measured_at: int, k: int
) -> None:
    spread = {"measured_at_k": measured_at, "concentration": concentration, "decay": decay}
    length = AcceptanceSpec(acceptance_length=2.3, **spread)  # type: ignore[arg-type]
    rate = AcceptanceSpec(draft_acceptance_rate=1.3 / measured_at, **spread)  # type: ignore[arg-type]
    assert pooled_length(survival_table(length, measured_at)) == pytest.approx(2.3, abs=1e-3)
    table = survival_table(length, k)
    assert table == pytest.approx(survival_table(rate, k), abs=1e-9)
    common = min(k, measured_at)
    assert table[:, :common] == pytest.approx(survival_table(length, measured_at)[:, :common])


def test_a_length_the_spread_cannot_reach_is_refused() -> None:
    apart = AcceptanceSpec(acceptance_length=3.8, low_atom=LowAtom(0.2, 0.0, 0.1))
    for spec in (AcceptanceSpec(acceptance_length=3.8, decay=0.6), apart):
        with pytest.raises(ValueError, match=r"3\.8"):
            survival_table(spec, 3)


def test_the_low_atom_is_a_share_of_requests_apart() -> None:
    atom = LowAtom(weight=0.125, low=0.02, high=0.1)
    spec = AcceptanceSpec(conditional_acceptance=0.7, concentration=40.0, low_atom=atom)
    each = survival_table(spec, 2)[:, 0]
    apart = (each >= atom.low) & (each <= atom.high)
    assert apart.mean() == atom.weight
    assert each[apart].mean() == pytest.approx(0.06, abs=1e-3)
    assert each[~apart].mean() == pytest.approx(0.7, abs=2e-3)


def test_long_prompts_accept_by_their_factor_linear_in_the_logarithm() -> None:
    nodes = ((1000.0, 1.0), (16000.0, 0.8))
    spec = AcceptanceSpec(by_position=(0.7, 0.5), context_multiplier=nodes)
    process = Acceptance(spec, 2, seed=5)
    assert [process.context_factor(n) for n in (10, 1000, 4000, 16000, 10**6)] == pytest.approx(
        [1.0, 1.0, 0.9, 0.8, 0.8]
    )
    accepted = drawn(process, 3, 400_000, prompt_tokens=4000)
    assert survivors(accepted, 2) == pytest.approx([0.7 * 0.9, 0.5 * 0.9**2], abs=4e-3)


def test_no_factor_makes_a_draft_likelier_than_the_drafts_before_it() -> None:
    spec = AcceptanceSpec(by_position=(0.5, 0.5, 0.5), context_multiplier=((100.0, 1.2),))
    accepted = drawn(Acceptance(spec, 3, seed=5), 3, 200_000)
    assert survivors(accepted, 3) == pytest.approx([0.6, 0.6, 0.6], abs=5e-3)


@pytest.mark.parametrize(("share", "stay"), [(0.3, 0.75), (0.6, 0.6), (0.3, None)])
def test_lookups_find_their_share_in_bursts(share: float, stay: float | None) -> None:
    spec = AcceptanceSpec(conditional_acceptance=0.5, proposal_probability=share, proposal_persistence=stay)
    found = Acceptance(spec, 2, seed=2).proposals(7, 200_000)
    assert found is not None
    hits = np.frombuffer(found, dtype=np.uint8)
    assert hits.mean() == pytest.approx(share, abs=0.01)
    assert hits[1:][hits[:-1] == 1].mean() == pytest.approx(stay or share, abs=0.01)


def test_a_drafter_that_always_proposes_draws_no_proposals() -> None:
    assert Acceptance(AcceptanceSpec(conditional_acceptance=0.5), 2, seed=2).proposals(7, 100) is None


def test_an_engines_synthetic_length_has_the_least_variance_and_no_spread() -> None:
    spec = AcceptanceSpec.synthetic_length(2.5, 4)
    accepted = drawn(Acceptance(spec, 4, seed=0), 9, 20_000)
    assert set(accepted.tolist()) == {1, 2}
    assert accepted.mean() == pytest.approx(1.5, abs=0.02)
    assert spec.synthetic and math.isinf(spec.concentration)
    rates = AcceptanceSpec.synthetic_rates((0.8, 0.4))
    assert survivors(drawn(Acceptance(rates, 2, seed=0), 1, 50_000), 2) == pytest.approx([0.8, 0.4], abs=0.01)


@given(SEEDS, st.integers(0, 10**6), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_luck_cut_to_a_shorter_draft_is_the_luck_of_the_longer(seed: int, request_id: int, k: int) -> None:
    for spec in (
        AcceptanceSpec(conditional_acceptance=0.8),
        AcceptanceSpec(by_position=(0.9,) * 4 + (0.3,) * 4),
    ):
        full, cut = (Acceptance(spec, depth, seed) for depth in (8, k))
        assert (np.minimum(drawn(full, request_id, 64), k) == drawn(cut, request_id, 64)).all()


@given(SEEDS, st.integers(0, 10**6), st.integers(1, 50), st.integers(1, 50))
@settings(max_examples=30, deadline=None)
def test_more_rounds_do_not_change_the_first_ones(seed: int, request_id: int, few: int, more: int) -> None:
    spec = AcceptanceSpec(conditional_acceptance=0.6, proposal_probability=0.5, proposal_persistence=0.7)
    process = Acceptance(spec, 5, seed)
    assert process.accepted(request_id, 10, few + more).startswith(process.accepted(request_id, 10, few))
    longer, shorter = process.proposals(request_id, few + more), process.proposals(request_id, few)
    assert longer is not None and shorter is not None and longer.startswith(shorter)


@given(SEEDS, st.integers(0, 100), st.integers(0, 50))
def test_a_stream_may_be_read_from_anywhere(stream: int, first: int, count: int) -> None:
    assert (bits64(stream, first, count) == bits64(stream, 0, first + count)[first:]).all()


@given(SEEDS, st.integers(0, 50))
def test_each_draw_of_64_bits_serves_two_of_32_low_half_first(stream: int, count: int) -> None:
    whole = bits64(stream, 0, (count + 1) // 2).tolist()
    halves = [half for word in whole for half in (word & 0xFFFFFFFF, word >> 32)]
    assert bits32(stream, count).tolist() == halves[:count]


@given(SEEDS, st.integers(0, 10**9), st.integers(1, 4))
def test_a_single_draw_is_the_first_of_its_stream(seed: int, request_id: int, purpose: int) -> None:
    assert bits_once(seed, request_id, purpose) == int(bits64(key(seed, request_id, purpose), 0, 1)[0])


def test_draws_are_uniform_and_streams_unrelated() -> None:
    streams = [bits32(key(seed, request, LEVEL), 4000) / 2**32 for seed in (0, 1) for request in (0, 1)]
    assert all(stats.kstest(draws, "uniform").pvalue > 1e-3 for draws in streams)
    assert np.abs(np.corrcoef(streams) - np.eye(4)).max() < 0.06
    levels = np.array([bits_once(0, request, LEVEL) / 2**64 for request in range(4000)])
    assert stats.kstest(levels, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    "faulty",
    [
        {},
        {"conditional_acceptance": 0.5, "acceptance_length": 2.0},
        {"by_position": (0.5, 0.6)},
        {"by_position": (1.2, 0.6)},
    ],
)
def test_a_contradictory_specification_is_refused(faulty: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"exactly one of|must not increase"):
        AcceptanceSpec(**faulty)  # type: ignore[arg-type]


def test_fewer_measured_positions_than_drafts_are_refused() -> None:
    with pytest.raises(ValueError, match="gives 5 positions, but K is 6"):
        Acceptance(AcceptanceSpec(by_position=CODE_EDIT), 6, seed=0)


def test_positions_that_the_requests_apart_rule_out_are_refused() -> None:
    spec = AcceptanceSpec(by_position=(0.95, 0.9, 0.88), low_atom=LowAtom(0.2, 0.0, 0.1), concentration=20.0)
    with pytest.raises(ValueError, match="cannot be reached"):
        survival_table(spec, 3)


@pytest.mark.parametrize(
    ("faulty", "said"),
    [
        ({"conditional_acceptance": 1.3}, "conditional_acceptance"),
        ({"conditional_acceptance": 0.5, "concentration": 0.0}, "concentration"),
        ({"conditional_acceptance": 0.5, "concentration": -3.0}, "concentration"),
        ({"conditional_acceptance": 0.5, "decay": 1.5}, "decay"),
        (
            {"conditional_acceptance": 0.5, "proposal_probability": 0.9, "proposal_persistence": 0.1},
            "proposal_persistence",
        ),
        (
            {"conditional_acceptance": 0.5, "proposal_probability": 0.3, "proposal_persistence": 1.0},
            "proposal_persistence",
        ),
    ],
)
def test_an_impossible_acceptance_is_refused_by_name(faulty: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AcceptanceSpec(**faulty)  # type: ignore[arg-type]


def test_a_factor_that_all_requests_share_gives_each_what_it_gives_one_with_a_factor_of_its_own() -> None:
    shared = Acceptance(
        AcceptanceSpec(conditional_acceptance=0.8, concentration=4.0, context_multiplier=((1.0, 0.8),)), 4, 1
    )
    nodes = ((1.0, 0.8), (100.0, 0.8), (1e6, 0.4))
    own = Acceptance(
        AcceptanceSpec(conditional_acceptance=0.8, concentration=4.0, context_multiplier=nodes), 4, 1
    )
    for request in [*range(300), *range(300)]:
        assert np.array_equal(shared.thresholds(request, 50), own.thresholds(request, 50))
    assert len({shared.thresholds(request, 50).tobytes() for request in range(300)}) > 100
