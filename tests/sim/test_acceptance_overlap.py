"""Temperature: what a logit model says, and how a request meets it."""

from __future__ import annotations

import numpy as np
import pytest

from specfleet.sim.speculation.acceptance import Acceptance, AcceptanceSpec
from specfleet.sim.speculation.overlap import RULES, TEMPERATURES, Overlap, conditional_acceptance
from specfleet.sim.speculation.spec import context_knee

SAMPLED, ARGMAX = Overlap("sampled"), Overlap("argmax")


@pytest.mark.parametrize(("temperature", "sampled", "argmax"), [(0.0, 0.74, 0.74), (1.0, 0.77, 0.53)])
def test_the_shipped_logits_give_the_published_overlaps(
    temperature: float, sampled: float, argmax: float
) -> None:
    assert conditional_acceptance(SAMPLED, temperature) == pytest.approx(sampled, abs=0.015)
    assert conditional_acceptance(ARGMAX, temperature) == pytest.approx(argmax, abs=0.015)


def test_at_temperature_zero_both_rules_ask_for_the_same_best_word() -> None:
    assert conditional_acceptance(SAMPLED, 0.0) == conditional_acceptance(ARGMAX, 0.0)
    for rule in (SAMPLED, ARGMAX):
        assert conditional_acceptance(rule, 0.02) == pytest.approx(
            conditional_acceptance(rule, 0.0), abs=0.01
        )


def test_heat_costs_a_greedy_draft_and_hardly_moves_a_drawn_one() -> None:
    greedy = [conditional_acceptance(ARGMAX, t) for t in (0.0, 0.7, 1.0, 1.5)]
    drawn = [conditional_acceptance(SAMPLED, t) for t in (0.0, 0.7, 1.0, 1.5)]
    assert greedy == sorted(greedy, reverse=True) and greedy[-1] < 0.5 * greedy[0]
    assert max(drawn) - min(drawn) < 0.08


@pytest.mark.parametrize("rule", RULES)
def test_a_noiseless_draft_is_the_target(rule: str) -> None:
    exact = Overlap(rule, noise=0.0)
    assert conditional_acceptance(exact, 0.0) == 1.0
    if rule == "sampled":
        assert conditional_acceptance(exact, 1.0) == pytest.approx(1.0)


@pytest.mark.parametrize("rule", RULES)
def test_more_noise_accepts_less(rule: str) -> None:
    accepted = [conditional_acceptance(Overlap(rule, noise=n), 0.7) for n in (0.3, 0.9, 1.8)]
    assert accepted == sorted(accepted, reverse=True)


def test_cutting_the_targets_tail_helps_a_greedy_draft() -> None:
    cut = [conditional_acceptance(Overlap("argmax", top_p=p), 1.0) for p in (1.0, 0.9, 0.5)]
    assert cut == sorted(cut)
    assert conditional_acceptance(Overlap("argmax", top_p=1e-9), 1.0) == conditional_acceptance(ARGMAX, 0.0)


@pytest.mark.parametrize("measured_at", [0.0, 1.0])
def test_the_factor_is_one_at_the_temperature_of_the_measurement(measured_at: float) -> None:
    nodes = dict(Overlap("argmax", measured_at_temperature=measured_at).multiplier())
    assert nodes[measured_at] == pytest.approx(1.0)
    assert tuple(nodes) == TEMPERATURES


def test_each_request_accepts_at_its_own_temperature() -> None:
    spec = AcceptanceSpec(by_position=(0.74, 0.74 * 0.75), overlap=ARGMAX)
    hot = Acceptance(spec, 2, seed=4)
    shares = [
        np.mean(np.frombuffer(hot.accepted(9, 100, 100_000, t), dtype=np.uint8) >= 1) for t in (0.0, 1.0)
    ]
    assert shares[0] == pytest.approx(0.74, abs=5e-3)
    assert shares[1] == pytest.approx(0.53, abs=0.02)
    with pytest.raises(ValueError, match="temperature of the request"):
        hot.accepted(9, 100, 10)


def test_nodes_of_temperature_are_linear_and_multiply_with_the_context() -> None:
    spec = AcceptanceSpec(
        conditional_acceptance=0.8,
        temperature_multiplier=((0.0, 1.0), (1.0, 0.8)),
        context_multiplier=((1000.0, 1.0), (2000.0, 0.5)),
    )
    process = Acceptance(spec, 1, seed=0)
    assert [process.factor(100, t) for t in (0.0, 0.5, 1.0, 3.0)] == pytest.approx([1.0, 0.9, 0.8, 0.8])
    assert process.factor(4000, 1.0) == pytest.approx(0.4)
    assert process.confidence(1, 4000, 1.0) == pytest.approx((0.32,))


def test_a_head_loses_its_grip_past_its_training_length_as_measured() -> None:
    spec = AcceptanceSpec(acceptance_length=2.3, measured_at_k=3, context_multiplier=context_knee(2048))
    process = Acceptance(spec, 3, seed=0)
    lengths = [1 + sum(process.confidence(1, tokens)) for tokens in (500, 2048, 4096, 8192, 12288, 16384)]
    assert lengths == pytest.approx([2.30, 2.30, 2.04, 1.69, 1.29, 1.09], abs=0.015)


@pytest.mark.parametrize(
    "faulty",
    [
        {"rule": "greedy"},
        {"sharpness": 0.0},
        {"noise": -1.0},
        {"top_p": 0.0},
        {"measured_at_temperature": -1.0},
    ],
)
def test_an_impossible_logit_model_is_refused(faulty: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"overlap.{next(iter(faulty))}"):
        Overlap(**faulty)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="same thing twice"):
        AcceptanceSpec(conditional_acceptance=0.5, overlap=ARGMAX, temperature_multiplier=((0.0, 1.0),))
