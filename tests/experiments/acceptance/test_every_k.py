"""`calibrate --acceptance --method`: what an engine counted at one K, predicted for the others."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from specfleet.experiments.calibrate.acceptance import acceptance_command
from specfleet.experiments.calibrate.predicted import every_k, prediction_text
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.tools.counts import Measured
from specfleet.sim.speculation.families import CONCENTRATION_BETWEEN_DATA_SETS, CONCENTRATION_BETWEEN_KS

COUNTERS = """vllm:spec_decode_num_drafts_total{engine="0"} 20000
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 14000
"""


def scrape(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.txt"
    path.write_text(COUNTERS)
    return path


def test_counters_of_k_1_predict_every_k_with_an_interval_and_what_to_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.yaml"
    assert acceptance_command(scrape(tmp_path), None, out, method="eagle3") == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines() if line[:1].isdigit()]
    assert [int(row[0]) for row in rows] == list(range(1, 9)) and rows[0][1:3] == ["1.70", "counted"]
    lengths = [(float(row[1]), float(row[2]), float(row[4])) for row in rows[1:]]
    assert all(low < value < high for value, low, high in lengths) and lengths == sorted(lengths)
    assert "Counting 10,000 rounds at K = " in printed
    block = yaml.safe_load((tmp_path / "mine.acceptance.yaml").read_text())["acceptance"]
    assert block["measured_at_k"] == 1 and block["by_position"] == [0.7]


def test_without_a_method_nothing_is_predicted_and_how_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert acceptance_command(scrape(tmp_path), None, tmp_path / "mine.yaml") == 0
    printed = capsys.readouterr().out
    assert "--method" in printed and "Predicted" not in printed
    assert "measured_at_k" not in (tmp_path / "mine.acceptance.yaml").read_text()


@pytest.mark.parametrize(
    ("method", "elsewhere", "said"),
    [("eagel", False, "is no method of drafting"), (None, True, "needs --method")],
)
def test_a_mistake_is_named(tmp_path: Path, method: str | None, elsewhere: bool, said: str) -> None:
    with pytest.raises(InputFaults, match=said):
        acceptance_command(scrape(tmp_path), None, tmp_path / "x.yaml", method=method, elsewhere=elsewhere)


def test_another_data_set_widens_the_lengths_and_the_spread_between_requests() -> None:
    measured = Measured("report", (0.7,), 20_000.0, concentration=20.0)
    here, there = (every_k(measured, "eagle3", elsewhere) for elsewhere in (False, True))
    assert here.concentration_range is not None and there.concentration_range is not None
    assert there.concentration_range[0] < here.concentration_range[0] < 20.0 < here.concentration_range[1]
    one, other = here.depth.length(3), there.depth.length(3)
    assert other.high - other.low > one.high - one.low
    assert "on another data set" in prediction_text(there) and "concentration 20.0" in prediction_text(here)


def test_the_concentration_of_k_1_holds_at_other_k_as_often_as_it_says(shared: Path) -> None:
    with (shared / "validation" / "acceptance_llama31_8b.csv").open(newline="") as file:
        found = {
            (row["proposer"], row["dataset"], int(row["K"])): float(row["beta_a"]) + float(row["beta_b"])
            for row in csv.DictReader(file)
        }
    one_k = [math.log(c / found[drafter, data, 1]) for (drafter, data, k), c in found.items() if k > 1]
    other = [
        math.log(c / found[drafter, there, k])
        for (drafter, data, k), c in found.items()
        for there in ("cnn", "gsm8k", "instructcoder", "sharegpt")
        if there != data and (drafter, there, k) in found
    ]
    for apart, deviation in (
        (one_k, CONCENTRATION_BETWEEN_KS),
        (other, math.hypot(CONCENTRATION_BETWEEN_KS, CONCENTRATION_BETWEEN_DATA_SETS)),
    ):
        assert 0.85 <= np.mean(np.abs(apart) <= 1.645 * deviation) <= 0.98
