"""Acceptance at a K that a file's figures were not measured at: predicted by the law, said in the run."""

from __future__ import annotations

from typing import Any

import pytest

from specfleet.experiments.load.config import Loaded, load
from specfleet.experiments.load.rules.acceptance import predicted
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import acceptance_specs
from specfleet.experiments.schema.blocks.acceptance import processes
from specfleet.experiments.words.backing import backing_of_points
from specfleet.sim.speculation.spec import AcceptanceSpec

CURVE = [0.72, 0.5, 0.36]
WORKLOAD = {"input_len": 100, "output_len": 50}


def loaded(k: int, acceptance: dict[str, Any], workload: dict[str, Any] = WORKLOAD) -> Loaded:
    """A file with a drafter of K drafts and this acceptance."""
    drafter = {"method": "eagle3", "num_speculative_tokens": k}
    serve = {
        "model": "meta-llama/Llama-3.3-70B-Instruct",
        "gpu": "h100-sxm",
        "tensor_parallel_size": 4,
        "speculative_config": {"model": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", **drafter},
    }
    traffic = {"max_concurrency": 4, "num_prompts": 8, **workload}
    return load({"serve": serve, "acceptance": {"concentration": 18, **acceptance}, "workload": traffic})


def spec(k: int, **acceptance: Any) -> AcceptanceSpec:
    [point] = expand(loaded(k, acceptance).experiment)
    return acceptance_specs(point.config)[""]


def said(k: int, **acceptance: Any) -> list[str]:
    return [text for text in loaded(k, acceptance).notices if "is predicted" in text]


def test_at_its_own_k_a_curve_is_as_measured_and_nothing_is_said() -> None:
    assert spec(3, by_position=CURVE, measured_at_k=3).by_position == tuple(CURVE)
    assert not said(3, by_position=CURVE, measured_at_k=3)


def test_beyond_its_k_a_curve_falls_faster_than_its_last_ratio_and_the_run_says_so() -> None:
    found = spec(6, by_position=CURVE).by_position
    assert found is not None and len(found) == 6
    assert found[0] < CURVE[0], "a larger K passes easy text in fewer rounds"
    ratio = CURVE[2] / CURVE[1]
    assert sum(found) < sum(CURVE) + CURVE[2] * (ratio + ratio**2 + ratio**3)
    [text] = said(6, by_position=CURVE)
    assert "predicted beyond K = 3: at K = 6" in text and "90 % interval" in text and "EAGLE heads" in text


def test_below_its_k_a_curve_is_predicted_where_the_file_says_its_k() -> None:
    assert spec(1, by_position=CURVE).by_position == tuple(CURVE)
    found = spec(1, by_position=CURVE, measured_at_k=3).by_position
    assert found is not None and found[0] > CURVE[0]
    assert "predicted below K = 3" in said(1, by_position=CURVE, measured_at_k=3)[0]


@pytest.mark.parametrize("given", [{"acceptance_length": 2.4}, {"draft_acceptance_rate": 1.4 / 3}])
def test_a_length_at_one_k_is_itself_there_and_predicted_at_others(given: dict[str, float]) -> None:
    assert spec(3, **given, measured_at_k=3).by_position is None
    found = spec(7, **given, measured_at_k=3).by_position
    assert found is not None and 2.4 < 1.0 + sum(found) < 3.4
    assert said(7, **given, measured_at_k=3)


def test_a_law_that_the_file_states_is_not_replaced() -> None:
    assert spec(7, conditional_acceptance=0.7).conditional_acceptance == 0.7
    assert spec(7, acceptance_length=2.4, measured_at_k=3, decay=0.9).acceptance_length == 2.4


def test_on_another_data_set_the_interval_is_wider() -> None:
    def width(dataset: str) -> float:
        this = loaded(
            5, {"by_position": CURVE, "measured_on": {"dataset": dataset}}, {"preset": "instructcoder"}
        )
        [point] = expand(this.experiment)
        found = predicted(processes(point.config.acceptance)[""], point.config)
        assert found is not None
        return found.length.high - found.length.low

    assert width("gsm8k") > 1.3 * width("instructcoder")


def test_what_a_run_does_not_rest_on_names_the_predicted_acceptance() -> None:
    def not_backed(**acceptance: Any) -> str:
        [point] = expand(loaded(5, acceptance).experiment)
        return "\n".join(backing_of_points([point.config], 150.0, 4.0))

    assert "Not backed: acceptance is predicted beyond K = 3: at K = 5" in not_backed(by_position=CURVE)
    assert "is predicted" not in not_backed(by_position=[*CURVE, 0.2, 0.1])
