"""What a file says of clients that give up: done, counted and told, or refused at its line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from test_pool_files import faults, written

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.built import build
from specfleet.experiments.run.check import check
from specfleet.experiments.run.runner import simulate_into
from specfleet.experiments.words.check import check_text
from specfleet.experiments.words.costs.patience import patience_said
from specfleet.experiments.words.summary import figures_shown
from specfleet.sim.fleet.patience import PatienceConfig
from specfleet.sim.recorder import GAVE_UP
from specfleet.workloads.pauses import (
    EmpiricalPause,
    ExponentialPause,
    FixedPause,
    LogNormalPause,
    PauseLaw,
    UniformPause,
)

FILE = """\
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  max_model_len: 2048
  max_num_seqs: 4
workload:
  input_len: 200
  output_len: 80
  request_rate: 30
  num_prompts: 60
  patience: {ttft_timeout_s: 0.5, timeout_s: {exponential: 3}, retries: 1, backoff_s: 0.2}
slo: {ttft_ms: 400}
"""
PATIENCE = "{ttft_timeout_s: 0.5, timeout_s: {exponential: 3}, retries: 1, backoff_s: 0.2}"


def other(patience: str, more: str = "") -> str:
    """The file with other patience."""
    return FILE.replace(PATIENCE, patience) + more


def test_who_gives_up_is_counted_and_told(tmp_path: Path) -> None:
    path = written(tmp_path, FILE)
    said = check_text(check(path, []))
    assert (
        "clients: wait 0.5 s for a first token and 3 s on average (exponential) for the whole answer, then"
        in said
    )
    assert "then send again, 1 time at most, after 0.2 s and longer" in said
    (point,) = expand(load_experiment(path))
    simulate_into(tmp_path / "point", point.config, 1, every_turn=True)
    found = json.loads((tmp_path / "point" / "engine.json").read_text())
    with (tmp_path / "point" / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    gone = [row for row in rows if int(row["status"]) == GAVE_UP]
    assert found["gave_up"] == len(gone) == sum(bool(row["gave_up_ms"]) for row in rows) > 0
    assert found["gave_up_share"] == len(gone) / 60
    assert found["client_retries"] == sum(int(row["client_retries"]) for row in rows) > 0
    assert found["wasted_tokens"] == sum(int(row["wasted_tokens"]) for row in rows) > 0
    assert 0.0 < found["wasted_seat_share"] < 1.0
    assert found["gave_up_unanswered"] <= found["gave_up"] and found["mean_gave_up_ms"] > 500.0
    bench = json.loads((tmp_path / "point" / "bench.json").read_text())
    assert bench["completed"] + len(gone) == 60 and bench["failed"] == len(gone)
    met = sum(
        not row["gave_up_ms"] and float(row["first_chunk_ms"]) - float(row["sent_ms"]) <= 400 for row in rows
    )
    assert found["slo_attainment"] == met / 60, "who was given up counts as missed"
    (told, over) = patience_said([found], [])
    assert told.startswith(f"Clients: {len(gone)} requests were given up") and "served" in over


def test_every_key_is_what_is_simulated(tmp_path: Path) -> None:
    (point,) = expand(load_experiment(written(tmp_path, FILE)))
    law = PatienceConfig(FixedPause(0.5), ExponentialPause(3.0), 1, 0.2)
    assert build(point.config).scenario.load.patience == {"": law}
    mixed = FILE.replace(
        "  request_rate: 30\n",
        "  request_rate: 30\n  mix: {chat: {share: 0.5, patience: {timeout_s: 9}}, code: {share: 0.5}}\n",
    )
    (point,) = expand(load_experiment(written(tmp_path, mixed)))
    assert build(point.config).scenario.load.patience == {
        "chat": PatienceConfig(None, FixedPause(9.0)),
        "code": law,
    }


@pytest.mark.parametrize(
    ("patience", "more", "key", "said"),
    [
        ("{}", "", "workload.patience", "nobody gives up: give ttft_timeout_s or timeout_s"),
        ("{timeout_s: 0}", "", "workload.patience.timeout_s", "nothing is ever there in 0 s"),
        ("{timeout_s: 2, ttft_timeout_s: 2}", "", "workload.patience.ttft_timeout_s", "says nothing"),
        ("{timeout_s: 2, backoff_s: 3}", "", "workload.patience.backoff_s", "nothing is sent again"),
        ("{timeout_s: 2}", "report: {requests: none}\n", "workload.patience", "figures alone are kept"),
        (
            "{timeout_s: 2, retries: 1}",
            "deployment: {replicas: 2, failures: {at: [{replica: 0, at_s: 1, for_s: 1}], detect_s: 1}}\n",
            "workload.patience.retries",
            "not modelled",
        ),
        (
            "{timeout_s: 2}",
            "deployment: {pools: {a: {role: prefill}, b: {role: decode}}}\n",
            "workload.patience",
            "where KV is handed over",
        ),
        ("{timeout_s: 2}", "plan: {candidates: {gpu: [h100-sxm]}}\n", "workload.patience", "not planned yet"),
    ],
)
def test_what_says_nothing_or_is_not_modelled_is_refused_with_its_line(
    tmp_path: Path, patience: str, more: str, key: str, said: str
) -> None:
    found = faults(tmp_path, other(patience, more))
    assert any(key in line and said in line for line in found), found


@pytest.mark.parametrize("key", ["ttft_timeout_s", "timeout_s"])
@pytest.mark.parametrize(
    ("law", "said"),
    [
        ("{fixed: 2}", FixedPause(2.0)),
        ("{uniform: {low: 1, high: 3}}", UniformPause(1.0, 3.0)),
        ("{exponential: 2}", ExponentialPause(2.0)),
        ("{lognormal: {median: 2, sigma: 1, max: 30}}", LogNormalPause(2.0, 1.0, 30.0)),
        ("{quantiles: [[0, 1], [100, 3]]}", EmpiricalPause((0.0, 100.0), (1.0, 3.0))),
    ],
)
def test_every_law_of_pauses_is_one_of_patience(tmp_path: Path, key: str, law: str, said: PauseLaw) -> None:
    (point,) = expand(load_experiment(written(tmp_path, other(f"{{{key}: {law}}}"))))
    (found,) = build(point.config).scenario.load.patience.values()
    assert getattr(found, key) == said


def test_the_column_of_who_was_not_served_is_not_called_refused_where_clients_left() -> None:
    """A reader takes "refused" for the engine's doing."""
    some: list[dict[str, object]] = [{"rejected": 3.0}, {"rejected": 3.0, "gave_up": 0.0}]
    some.append({"rejected": 3.0, "gave_up": 2.0})
    headings = [{figure.key: figure.heading for figure in figures_shown([row])}["rejected"] for row in some]
    assert headings == ["refused", "refused", "not served"]
