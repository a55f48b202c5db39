"""Bounds of a plan where answers are short: nobody beats them, and TPOT limits only who has one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from plan_toys import SMALL, every

from specfleet.experiments.load.config import load
from specfleet.experiments.plan.traffic import Trial
from specfleet.experiments.plan.trials import measure
from specfleet.experiments.point.bounds import SLACK, MeanLengths, bound, most
from specfleet.experiments.point.built import build
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.hardware.stepcost import StepShape


def answers_of(output: str, slo: str = "{p99_ttft_ms: 400, p99_tpot_ms: 25}") -> Experiment:
    """The small plan's plain requests with other answers, nearly all at once, on its first candidate."""
    text = SMALL.replace("{uniform: {low: 20, high: 100}}", output).replace(
        "num_warmups: 20", "num_prompts: 400"
    )
    text = text.replace("request_rate: 60", "request_rate: 10000")
    text = text.replace("{p99_ttft_ms: 400, p99_tpot_ms: 25}", slo)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "short.yaml"
        path.write_text(text)
        config = every(load(path).experiment)[0].config
    assert config.serve.speculative_config is None
    return config


def test_answers_of_one_token_are_bound_by_their_prompts_in_closed_form() -> None:
    config = answers_of("{fixed: 1}")
    built = build(config).scenario
    lengths = MeanLengths(prompt=600.0, output=1.0, context=600.5, long_prompt=900.0)
    found = most(built.cost, built.engine, lengths, 1.0, 1e-9)
    n = min(built.engine.max_num_batched_tokens // 600, built.engine.max_num_seqs)
    assert n > 1
    each = [
        built.cost.seconds(StepShape(600 * i, 0, i, i, 0, 0, 0, i * 600 * 601 // 2, 0)) / i
        for i in range(1, n + 1)
    ]
    assert found.rate == pytest.approx(SLACK / min(each), rel=1e-12)
    assert (found.batch, found.prompt_share) == (0.0, 1.0)


@pytest.mark.parametrize("output", ["{fixed: 1}", "{uniform: {low: 1, high: 2}}", "{fixed: 3}"])
def test_a_replica_that_is_never_out_of_work_comes_near_its_bound_and_does_not_pass_it(output: str) -> None:
    trial = Trial(answers_of(output), 0)
    found = bound(trial.config, MeanLengths.of(trial.table()))
    served = measure(trial)["request_throughput"]
    assert 0.6 * found.rate < served < found.rate


def test_a_limit_on_tpot_is_none_where_no_answer_has_a_second_token() -> None:
    trial = Trial(answers_of("{fixed: 1}", "{p99_tpot_ms: 0.001}"), 0)
    assert bound(trial.config, MeanLengths.of(trial.table())).rate > 0.0
    assert max(measure(trial).of("tpot").values, default=0.0) == 0.0


def test_few_answers_of_two_tokens_are_not_charged_with_the_prompts_of_all_others() -> None:
    config = answers_of("{fixed: 2}")
    built = build(config).scenario
    rates = []
    for mean in (1.0, 1.0 + 1e-6, 1.001, 1.01):
        lengths = MeanLengths(600.0, mean, 600.5, 900.0)
        rates.append(most(built.cost, built.engine, lengths, 1.0, 0.012).rate)
    assert min(rates) > 0.3 * rates[0]
    assert rates[1:] == pytest.approx([rates[1]] * 3, rel=0.02)
