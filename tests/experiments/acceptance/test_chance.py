"""`breakeven` and `plan` on acceptance that is predicted: with what chance a K pays."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from plan_toys import SMALL, every

from specfleet.experiments.breakeven.answers import answers
from specfleet.experiments.breakeven.chance import chances
from specfleet.experiments.breakeven.question import Breakeven
from specfleet.experiments.breakeven.report import breakeven_facts, breakeven_text
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.predicted import chance_lines, chance_to_pay, predicted_acceptance_of
from specfleet.experiments.plan.seen import TrialFigures
from specfleet.experiments.plan.sensitivity import LOW_END, changes
from specfleet.experiments.plan.speculation import BreakEven
from specfleet.experiments.plan.traffic import Traffic
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.schema.structure import check
from specfleet.experiments.schema.yamlfile import parse
from specfleet.experiments.words.chance import chance_said

K_1 = "acceptance: {by_position: [0.6], measured_at_k: 1, concentration: 18}"
BATCHES = f"""
name: tiny
serve:
  model: llama-3.1-8b-instruct
  gpu: h100-sxm
  max_model_len: 4096
  max_num_seqs: 512
  speculative_config: {{model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}}
{K_1}
workload: {{input_len: 50, output_len: 40, max_concurrency: 4, num_prompts: {{per_concurrency: 2, min: 40}}}}
sweep:
  axes: {{workload.max_concurrency: [4, 512], serve.speculative_config.num_speculative_tokens: [1, 5]}}
"""


def test_breakeven_says_with_what_chance_a_predicted_k_pays_and_nothing_of_a_measured_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "tiny.yaml").write_text(BATCHES)
    this = Breakeven(tmp_path / "tiny.yaml", out=tmp_path / "out", tolerance=0.1)
    this.execute(1, Reporter(this.total, quiet=True))
    found = {(one.load, one.question): one.chance for one in chances(this, answers(this))}
    assert {one.k for one in chances(this, answers(this))} == {5}
    assert found[4.0, "throughput"] > 0.9 > 0.5 > found[512.0, "throughput"]
    text = breakeven_text(this)
    assert "K = 5: acceptance is predicted from K = 1" in text and "it pays with" in text
    assert "Counting 10,000 rounds at K = " in text or "No count of acceptance would change" in text
    assert len(breakeven_facts(this)["chances"]) == len(found)  # type: ignore[arg-type]


def drafting(acceptance: str) -> Candidate:
    text = SMALL.replace("acceptance: {conditional_acceptance: 0.75}", acceptance)
    return next(one for one in every(check(parse(text, "small.yaml").data).experiment) if one.k == 3)


def test_a_plan_on_predicted_acceptance_says_with_what_chance_it_pays() -> None:
    mine = drafting(K_1)
    law = predicted_acceptance_of(mine)
    assert law is not None
    drawn = TrialFigures({"spec_decode_acceptance_length": law.length.value})
    at = BreakEven(0.8, law.length.value, 0.5, 0.6, 2.0)
    assert chance_to_pay(mine, at, drawn) == pytest.approx(0.5)
    easy = dataclasses.replace(at, acceptance_length=law.length.low)
    assert chance_to_pay(mine, easy, drawn) == pytest.approx(0.95, abs=0.005)
    assert "it pays with 95 %" in " ".join(chance_lines(mine, easy, drawn))
    assert chance_to_pay(mine, dataclasses.replace(at, factor=None), drawn) is None
    low = changes(Traffic(1.0), law)[LOW_END].acceptance_factor
    reached = 1.0 + sum(step * low**i for i, step in enumerate(law.by_position, 1))
    assert reached == pytest.approx(law.length.low)


def test_a_plan_on_measured_acceptance_says_nothing_of_chances() -> None:
    mine = drafting("acceptance: {by_position: [0.6, 0.4, 0.2], measured_at_k: 3}")
    at = BreakEven(0.8, 1.5, 0.5, 0.6, 2.0)
    assert predicted_acceptance_of(mine) is None and chance_to_pay(mine, at, TrialFigures({})) is None
    assert not list(chance_lines(mine, at, TrialFigures({}))) and LOW_END not in changes(Traffic(1.0))


@pytest.mark.parametrize(
    ("chance", "said"), [(0.934, "93 %"), (0.999, "more than 99 %"), (0.001, "less than 1 %")]
)
def test_no_chance_is_said_to_be_certain(chance: float, said: str) -> None:
    assert chance_said(chance) == said
