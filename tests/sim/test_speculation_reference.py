"""Exactness on tokens: the output has the target's distribution, whatever is drafted."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sim_toys import World, drafting

from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.sim.speculation.exactness import (
    F64,
    METHODS,
    RESIDUALS,
    TEMPERATURES,
    TREES,
    VOCABULARY,
    Output,
    accepted_at,
    chi_square,
    chi_square_limit,
    direct_output,
    generated,
    loop_of,
    output_of,
    overlap,
    random_model,
    random_pair,
    rollback_of,
    successors,
    total_variation,
)
from specfleet.sim.speculation.ngram_lm import NGram, tiny_pair, zipf_text
from specfleet.sim.speculation.reference import (
    Counters,
    Draft,
    DraftedToken,
    Drafter,
    Generation,
    ancestor_mask,
    decode,
    probabilistic,
    residual,
    sample,
    walk,
)
from specfleet.sim.speculation.trees import TreeSpec, chain

V = VOCABULARY
TARGET, DRAFT = random_pair()

simplex = st.lists(st.floats(0.0, 1.0), min_size=V, max_size=V).filter(lambda w: sum(w) > 0.01)


def law_of_output(p: F64, q: F64, candidates: int) -> F64:
    """Exact distribution of one token: every candidate, drawn without replacement, is tried in turn."""
    if candidates == 0 or not q.any():
        return p
    q = q / q.sum()
    output = np.minimum(p, q)
    for token in np.flatnonzero(q > p):
        rejected = q[token] - p[token]
        output = output + rejected * law_of_output(
            residual(p, q), np.where(np.arange(V) == token, 0, q), candidates - 1
        )
    return np.asarray(output)


@given(simplex, simplex, st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_accepting_min_1_p_over_q_and_then_the_residual_gives_p_exactly(
    p: list[float], q: list[float], candidates: int
) -> None:
    target = np.array(p) / sum(p)
    assert law_of_output(target, np.array(q), candidates) == pytest.approx(target, abs=1e-12)


@given(simplex, simplex)
@settings(max_examples=50, deadline=None)
def test_the_residual_is_a_distribution_outside_what_the_draft_covers(p: list[float], q: list[float]) -> None:
    target, draft = np.array(p) / sum(p), np.array(q) / sum(q)
    left = residual(target, draft)
    assert left.sum() == pytest.approx(1.0)
    assert total_variation(target, draft) < 1e-12 or not left[draft >= target].any()


@pytest.fixture(scope="module", params=[(tree, method) for tree in TREES for method in METHODS])
def batch(request: pytest.FixtureRequest) -> list[Generation]:
    """50,000 steps: 2,500 sequences of 20 rounds."""
    tree, method = request.param
    return generated(loop_of(TARGET, DRAFT, TREES[tree], method), [[0, 0]] * 2500, 20)


def test_50_000_steps_pass_chi_square_against_the_target(batch: list[Generation]) -> None:
    assert sum(len(generation.accepted) for generation in batch) == 50_000
    counts = successors([generation.tokens for generation in batch])
    statistic, critical = chi_square(counts, np.tile(TARGET.table, (V, 1)))
    assert statistic < critical
    assert Output.of([generation.tokens for generation in batch], TARGET).exact


def test_50_000_steps_are_within_a_hundredth_of_direct_sampling(batch: list[Generation]) -> None:
    rng = np.random.default_rng(7)
    direct = [decode(TARGET, [0, 0], 20, rng) for _ in range(5000)]
    a, b = successors([generation.output[:20] for generation in batch]), successors(direct)
    a, b = a / a.sum(), b / b.sum()
    assert float((a * np.log(a / b)).sum()) < 0.01
    assert total_variation(a.sum(axis=0), b.sum(axis=0)) < 0.01


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("method", METHODS)
def test_a_recovered_token_drawn_from_p_itself_is_found(tree: str, method: str) -> None:
    broken = output_of(tree, method, RESIDUALS["broken"], 10_000)
    assert not broken.exact and broken.statistic > 3 * broken.limit
    assert 10_000 <= broken.tokens <= 10_000 * (1 + TREES[tree].depth)
    assert broken.variation > 2 * direct_output(broken.tokens).variation


def test_the_limit_of_chi_square_is_scipys() -> None:
    for degrees in (30, 100, 192, 5000):
        for confidence in (0.95, 0.999):
            exact = stats.chi2.ppf(confidence, degrees)
            assert chi_square_limit(confidence, degrees) == pytest.approx(exact, rel=2e-3)


def test_counts_too_small_for_chi_square_are_refused() -> None:
    with pytest.raises(ValueError, match="expected in a cell"):
        chi_square(np.ones((V**3, V)), np.tile(TARGET.table, (V, 1)))


def test_slots_written_are_kept_or_cut_off_and_only_branches_move() -> None:
    chain_s, tree_s = rollback_of("chain", rounds=400), rollback_of("tree", rounds=400)
    assert chain_s.whole and tree_s.whole
    assert (chain_s.written, tree_s.written) == (400 * 5, 400 * 7)
    assert 400 < chain_s.kept < chain_s.written and 400 < tree_s.kept < tree_s.written
    assert chain_s.moved == 0 < tree_s.moved


def test_every_round_yields_its_accepted_drafts_and_one_token(batch: list[Generation]) -> None:
    for generation in batch:
        assert len(generation.output) == sum(accepted + 1 for accepted in generation.accepted)
        assert generation.kv == generation.tokens[:-1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tree", TREES)
def test_greedy_output_is_the_targets_own_token_by_token(tree: str, method: str) -> None:
    target = TARGET.at(0.0)
    batch = generated(
        loop_of(target, DRAFT, TREES[tree], method), [[a, b] for a in range(V) for b in range(V)], 20
    )
    rng = np.random.default_rng(0)
    for generation in batch:
        alone = decode(target, generation.tokens[:2], len(generation.output), rng)
        assert generation.output == alone


def counting(vocabulary: int, but: dict[int, int] | None = None) -> NGram:
    """A model that surely counts upwards, except after the tokens in `but`."""
    after = [(but or {}).get(token, (token + 1) % vocabulary) for token in range(vocabulary)]
    return NGram(np.eye(vocabulary)[after])


@pytest.mark.parametrize("method", METHODS)
def test_one_of_a_batch_accepts_all_while_another_rejects_at_position_2(method: str) -> None:
    loop = loop_of(counting(10), counting(10, but={5: 0}), chain(4), method)
    batch = [Generation([0]), Generation([3, 4])]
    loop.step(batch)
    assert [generation.accepted for generation in batch] == [[4], [1]]
    assert [generation.output for generation in batch] == [[1, 2, 3, 4, 5], [5, 6]]
    assert [generation.kv for generation in batch] == [[0, 1, 2, 3, 4], [3, 4, 5]]
    assert loop.target_passes == 1
    loop.step(batch)
    assert [generation.output[-1] for generation in batch] == [6, 1]  # the first rejects at once, on 0
    assert loop.target_passes == 2


def test_drafts_are_written_past_the_end_and_a_rejection_cuts_them_off() -> None:
    loop = loop_of(counting(10), counting(10, but={5: 0}), chain(4))
    generation = Generation([3, 4])
    draft = loop.drafter.propose(generation.tokens, loop.rng)
    seen = generation.write(draft)
    assert generation.kv == [3, 4, 5, 0, 1, 2]
    assert seen == [[3, 4], [3, 4, 5], [3, 4, 5, 0], [3, 4, 5, 0, 1], [3, 4, 5, 0, 1, 2]]
    generation.keep(*walk(draft, loop.target.rows(seen), loop.rng))
    assert generation.kv == [3, 4, 5] and generation.tokens == [3, 4, 5, 6] and generation.moved_tokens == 0


def test_a_node_sees_the_prompt_and_its_ancestors_only() -> None:
    tree = TREES["tree"]
    draft = Drafter(DRAFT, tree).propose([1, 2], np.random.default_rng(0))
    assert draft.parents == (0, 1, 2, 1, 0, 5)
    ancestors = [{path[:depth] for depth in range(len(path) + 1)} for path in ((), *tree.paths)]
    expected = [[path in seen for path in ((), *tree.paths)] for seen in ancestors]
    assert (ancestor_mask(draft.parents) == expected).all()
    assert (ancestor_mask((0, 1, 2, 3)) == np.tri(5)).all()


def test_an_accepted_branch_off_the_first_moves_its_kv_up() -> None:
    one_hot = np.eye(10)
    draft = Draft(tuple(DraftedToken(token, one_hot[token]) for token in (7, 8, 1, 2)), (0, 1, 0, 3))
    generation = Generation([0])
    rows = counting(10).rows(generation.write(draft))
    generation.keep(*walk(draft, rows, np.random.default_rng(0)))
    assert generation.tokens == [0, 1, 2, 3] and generation.kv == [0, 1, 2]
    assert generation.moved_tokens == 2


def test_a_draft_distribution_with_one_token_fills_one_rank() -> None:
    q = np.array([0.0, 1.0, 0.0])
    assert [candidate.token for candidate in probabilistic(q, 3, np.random.default_rng(0))] == [1]


def chance_by_rank(p: F64, q: F64, candidates: int) -> list[float]:
    """P(the first, second, ... candidate is accepted) for draws from `q` without replacement."""
    if candidates == 0 or not q.any():
        return [0.0] * candidates
    q = q / q.sum()
    chances = np.zeros(candidates)
    chances[0] = np.minimum(p, q).sum()
    for token in np.flatnonzero(q > p):
        left = np.where(np.arange(V) == token, 0, q)
        chances[1:] += (q[token] - p[token]) * np.array(chance_by_rank(residual(p, q), left, candidates - 1))
    return chances.tolist()


@pytest.mark.parametrize("method", METHODS)
def test_without_context_the_accepted_depth_is_the_trees_survival(method: str) -> None:
    target, draft, tree = random_model(1, 5), random_model(1, 6), TREES["tree"]
    p, q = target.table[0], draft.table[0]
    ranks = {
        "greedy": p[np.argsort(-q)[:2]].tolist(),
        "probabilistic": chance_by_rank(p, q, 2),
    }[method]
    batch = generated(loop_of(target, draft, tree, method), [[0]] * 200, 50)
    survival = [1.0, *tree.survival(ranks)[: tree.depth], 0.0]
    expected = -10_000 * np.diff(survival)
    counts = Counters.of(batch, tree.depth)
    assert stats.chisquare(counts.rounds_by_accepted, expected).pvalue > 0.05
    moved = sum(generation.moved_tokens for generation in batch) / 10_000
    assert moved == pytest.approx(tree.kv_moved_tokens(ranks), abs=0.02)


@lru_cache
def measured(temperature: float, method: str, tree: TreeSpec) -> Counters:
    """What the tiny pair accepts in 8,000 rounds after the beginnings of its own text."""
    return accepted_at(temperature, method, tree)


@pytest.mark.parametrize(
    ("method", "first_position", "conditional"),
    [
        ("probabilistic", (0.783, 0.692, 0.634, 0.595), (0.874, 0.738, 0.673, 0.602)),
        ("greedy", (0.783, 0.617, 0.482, 0.367), (0.874, 0.666, 0.517, 0.369)),
    ],
)
def test_acceptance_falls_with_temperature_and_more_so_where_drafts_are_argmax(
    method: str, first_position: tuple[float, ...], conditional: tuple[float, ...]
) -> None:
    counters = [measured(temperature, method, TREES["chain"]) for temperature in TEMPERATURES]
    assert [c.by_position[0] for c in counters] == pytest.approx(first_position, abs=0.012)
    assert [c.conditional_acceptance for c in counters] == pytest.approx(conditional, abs=0.012)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_first_draft_is_accepted_as_the_closed_form_says(temperature: float, method: str) -> None:
    target, draft = (model.at(temperature) for model in tiny_pair())
    counters = accepted_at(temperature, method, chain(1), 1)
    assert counters.by_position[0] == pytest.approx(overlap(target, draft, method), abs=0.025)


def test_where_the_target_spreads_as_the_draft_does_only_argmax_drafts_lose() -> None:
    text = zipf_text(32, 20_000, 0)
    target, draft = NGram.fit(text, 32, 3, 20.0), NGram.fit(text, 32, 2, 20.0)
    sampled, argmax = (
        [overlap(target.at(t), draft.at(t), method) for t in TEMPERATURES] for method in reversed(METHODS)
    )
    assert sampled == pytest.approx([0.788, 0.759, 0.757, 0.773], abs=2e-3)
    assert argmax == pytest.approx([0.788, 0.622, 0.510, 0.353], abs=2e-3)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("method", METHODS)
def test_the_event_simulators_counters_are_the_loops_in_distribution(tree: str, method: str) -> None:
    spec = TREES[tree]
    loop, k = measured(1.0, method, spec), spec.num_nodes
    by_position = (*loop.by_position, *[0.0] * (k - spec.depth))
    acceptance = AcceptanceSpec(by_position=by_position, concentration=math.inf)
    result = World([100] * 16, [3000] * 16, engine=drafting(k), acceptance=acceptance).run(seed=3)
    rounds = np.array(result.rounds_by_accepted)
    share = np.array(loop.rounds_by_accepted) / sum(loop.rounds_by_accepted)
    assert not rounds[spec.depth + 1 :].any()
    assert stats.chisquare(rounds[: spec.depth + 1], rounds.sum() * share).pvalue > 0.001
    requests = result.requests
    accepted = requests["accepted_tokens"].sum()
    assert requests["verifications"].sum() == rounds.sum()
    assert accepted == rounds @ np.arange(k + 1)
    assert accepted / requests["draft_tokens"].sum() == pytest.approx(sum(loop.by_position) / k, rel=0.03)


def test_impossible_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="greedy, probabilistic"):
        Drafter(DRAFT, chain(2), "typical")
    with pytest.raises(ValueError, match="no power"):
        NGram(np.full((5, 4), 0.25))
    with pytest.raises(ValueError, match="sum 1"):
        NGram(np.full((4, 4), 0.3))


def test_counts_smooth_towards_the_shorter_model() -> None:
    text = np.array([0, 1, 0, 1, 0, 2])
    unigram = (np.array([3, 2, 1]) + 1 / 3) / 7
    assert NGram.fit(text, 3, 1, 1.0).table[0] == pytest.approx(unigram)
    bigram = NGram.fit(text, 3, 2, 1.0)
    assert bigram.table[0] == pytest.approx((np.array([0, 2, 1]) + unigram) / 4)
    assert bigram.table[2] == pytest.approx(unigram)  # never seen before a token


def test_temperature_sharpens_spreads_and_ends_in_the_argmax() -> None:
    model = NGram(np.array([[0.5, 0.3, 0.2, 0.0]] * 4))
    assert model.at(1.0).table == pytest.approx(model.table)
    assert model.at(0.5).table[0] == pytest.approx(np.array([25, 9, 4, 0]) / 38)
    assert model.at(0.0).table[0].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert model.at(1e6).table[0] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0], abs=1e-5)


def test_a_draw_never_falls_on_a_token_without_probability() -> None:
    rng = np.random.default_rng(0)
    drawn = [sample(np.array([0.0, 0.7, 0.0, 0.3, 0.0]), rng) for _ in range(2000)]
    assert set(drawn) == {1, 3}
    assert drawn.count(1) == pytest.approx(1400, abs=80)
