"""What a file says of replicas that follow the load: done and paid for, or refused at its line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_pool_files import faults, written

from specfleet.experiments.figures.run import draw_run
from specfleet.experiments.load.config import load_experiment, resolved
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.coming import autoscale_config, start_s
from specfleet.experiments.run.check import check
from specfleet.experiments.run.columnfiles import write_fleet
from specfleet.experiments.run.costs.ratio import FIRST, STARTING_TTFT, scaling_against
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.run.run import Run
from specfleet.experiments.run.runner import simulate_into
from specfleet.experiments.words.check import check_text
from specfleet.experiments.words.costs.scaling import scaling_said
from specfleet.experiments.words.run import run_text
from specfleet.sim.fleet.scaling import LOG_COLUMNS, ScalingLog

SCALE = "{metric: concurrency, target: 4, max: 4, every_s: 1, window_s: 1, provision_s: 0, load_s: 2}"
FILE = """\
name: scaled
serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm, engine: vllm-0.33, max_model_len: 1024}
deployment: {router: least_outstanding, autoscale: SCALE}
workload:
  input_len: 100
  output_len: 60
  request_rate: 4
  num_prompts: 150
  arrivals: {spike: {at_s: 4, for_s: 6, factor: 6}}
"""


def file(scale: str = SCALE, old: str = "", new: str = "") -> str:
    """The file with another block, and some text replaced."""
    assert old in FILE
    return FILE.replace(old, new, 1).replace("SCALE", scale)


def finished(path: Path, out: Path, jobs: int) -> Run:
    """A run of a file that is whole."""
    ran = Run(path, (), out)
    todo = ran.prepare(resume=False)
    ran.execute(todo, jobs, Reporter(len(todo), quiet=True))
    ran.summary()
    ran.release()
    return ran


def point(folder: Path, text: str) -> tuple[dict[str, float], list[list[str]]]:
    """The figures of a file's first point, and the rows of its fleet.csv."""
    (config,) = [each.config for each in expand(load_experiment(written(folder, text)))]
    simulate_into(folder / "point", config, 1, every_turn=False)
    found = json.loads((folder / "point" / "engine.json").read_text())
    table = folder / "point" / "fleet.csv"
    rows = [line.split(",") for line in table.read_text().splitlines()] if table.exists() else []
    return found, rows


def test_a_point_says_how_many_replicas_it_had_and_pays_for_those(tmp_path: Path) -> None:
    found, rows = point(tmp_path, file())
    assert rows[0] == ["time_s", "starting", "up", "draining", "paid", "metric", "wish"]
    paid = [int(row[4]) for row in rows[1:]]
    assert max(paid) == found["peak_replicas"] > 1 and found["scale_outs"] >= 1
    assert 1.0 < found["mean_replicas"] < found["peak_replicas"]
    assert found["first_scale_out_s"] == next(float(r[0]) for r in rows[1:] if int(r[1]))
    assert found["gpu_ms_per_output_token"] == pytest.approx(found["gpu_hours"] * 3.6e6 / (150 * 60))
    (tmp_path / "fixed").mkdir()
    four = "{metric: concurrency, target: 4, min: 4, max: 4, provision_s: 0}"
    always, _ = point(tmp_path / "fixed", file(four))
    (tmp_path / "plain").mkdir()
    plain, none = point(tmp_path / "plain", file("", "autoscale: SCALE", "replicas: 4"))
    assert not none and "mean_replicas" not in plain
    numbers = {key: value for key, value in plain.items() if isinstance(value, float)}
    assert {key: always[key] for key in numbers} == pytest.approx(numbers, rel=1e-9, abs=1e-12)
    assert always["tpot_split"] == plain["tpot_split"]
    assert found["cost_usd_per_million_output_tokens"] < always["cost_usd_per_million_output_tokens"]
    assert found["energy_j_per_output_token"] < always["energy_j_per_output_token"]


def test_a_run_says_when_it_scaled_draws_it_and_gives_the_same_bytes_again(tmp_path: Path) -> None:
    swept = (
        file()
        .replace("serve: {", "serve: {speculative_config: DRAFTER, ")
        .replace(
            "DRAFTER",
            "{method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}",
        )
    )
    swept += "acceptance: {conditional_acceptance: 0.7, concentration: 18}\n"
    swept += "sweep: {axes: {serve.speculative_config.num_speculative_tokens: [0, 3]}}\n"
    ran = finished(written(tmp_path, swept), tmp_path / "run", 1)
    said = run_text(ran, ran.summary())
    assert (
        "K = 3: replicas added in 1 decision, the first at" in said or "in 2 decisions, the first at" in said
    )
    assert "Against the baseline K = 3 orders the next replica" in said
    drawn = [path.name for path in draw_run(ran.folder)]
    assert "scaling.png" in drawn
    again = finished(written(tmp_path, swept), tmp_path / "again", 2)
    for path in sorted(ran.folder.glob("points/*/*")):
        assert path.read_bytes() == (again.folder / path.relative_to(ran.folder)).read_bytes()


def test_check_says_when_a_new_replica_serves_and_what_is_resolved_is_read_back(tmp_path: Path) -> None:
    assumed = "{metric: ttft, target: 300, min: 2, max: 4, provision_s: 30}"
    path = written(tmp_path, file(assumed))
    said = check_text(check(path, ()))
    assert "autoscale: 2 to 4 replicas, ttft at 300 ms, decided every 15 s, fewer after 300 s" in said
    # 14.99 GiB of weights at 1.1 GB/s and 58 s
    assert "a new replica serves 30 s + 73 s after its order (assumed" in said
    experiment = load_experiment(path)
    (tmp_path / "again.yaml").write_text(resolved(experiment))
    assert load_experiment(tmp_path / "again.yaml") == experiment
    config = expand(experiment)[0].config
    built = autoscale_config(config)
    assert built is not None
    assert (built.target, built.start, built.start_s) == (0.3, 2, sum(start_s(config)))


def test_every_key_changes_what_the_autoscaler_is_told(tmp_path: Path) -> None:
    base = {"metric": "concurrency", "target": 4, "max": 4, "provision_s": 0, "load_s": 2}
    told = {}
    others = {"metric": "queue", "target": 5, "min": 2, "max": 5, "start": 3, "every_s": 2, "window_s": 2}
    others |= {"tolerance": 0.2, "provision_s": 1, "load_s": 4, "up_most": 2, "down_after_s": 7}
    for key, value in {"": 0, **others}.items():
        text = ", ".join(f"{k}: {v}" for k, v in (base | ({key: value} if key else {})).items())
        told[key] = autoscale_config(
            expand(load_experiment(written(tmp_path, file(f"{{{text}}}"))))[0].config
        )
    assert len(set(told.values())) == len(told) == 13 and None not in told.values()


@pytest.mark.parametrize(
    ("scale", "old", "new", "said"),
    [
        (SCALE.replace("max: 4", "min: 5, max: 4"), "", "", "autoscale.min: is above max, 4"),
        (SCALE.replace("max: 4", "start: 5, max: 4"), "", "", "autoscale.start: must lie between 1 and 4"),
        (SCALE.replace("concurrency", "cpu"), "", "", "deployment.autoscale.metric: 'cpu' is not supported"),
        (SCALE.replace("provision_s: 0, ", ""), "", "", "autoscale.provision_s"),
        (SCALE.replace("concurrency", "kv_usage"), "", "", "autoscale.target: is a share of 1"),
        (
            SCALE.replace("concurrency", "slo_attainment").replace("target: 4", "target: 0.9"),
            *("", "", "autoscale.metric: nothing is said of a request's latency"),
        ),
        (SCALE, "autoscale", "replicas: 2, autoscale", "deployment.replicas: autoscale says how many"),
        (SCALE, "least_outstanding", "session", "deployment.router: session remembers replicas by number"),
        (SCALE, "autoscale", "slow: [{factor: 2, share: 0.5}], autoscale", "not modelled with stragglers"),
        (
            SCALE,
            "autoscale",
            "pools: {a: {}}, autoscale",
            "autoscale: say which pool's",
        ),
        (SCALE, "workload:", "report: {requests: none}\nworkload:", "remove deployment.autoscale"),
        (
            *(SCALE, "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B, data_parallel_size: 2"),
            "autoscale: is not modelled with data_parallel_size above 1",
        ),
    ],
)
def test_what_does_not_go_together_is_a_fault_with_its_line(
    tmp_path: Path, scale: str, old: str, new: str, said: str
) -> None:
    found = faults(tmp_path, file(scale, old, new))
    assert len(found) == 1 and said in found[0], found
    assert found[0].split(":")[1].strip().isdigit() or ":" in found[0]


def test_the_table_of_replicas_has_an_empty_cell_where_nothing_was_decided(tmp_path: Path) -> None:
    columns = dict(zip(LOG_COLUMNS, np.array([[0.0, np.nan, np.nan, 1, 2, 3, 4, 5]]).T, strict=True))
    write_fleet(tmp_path / "fleet.csv", ScalingLog(columns, {}))
    head, row = (tmp_path / "fleet.csv").read_text().splitlines()
    assert (head, row) == ("time_s,starting,up,draining,paid,metric,wish", "0.000000,1,2,3,10,,")
    write_fleet(tmp_path / "fleet.csv", ScalingLog(columns, {}), loses=True)
    head, row = (tmp_path / "fleet.csv").read_text().splitlines()
    assert head == "time_s,starting,up,draining,noticed,paid,missing,metric,wish"
    assert row == "0.000000,1,2,3,4,10,5,,"


def test_what_drafts_do_to_an_autoscaler_is_said_by_the_least_and_the_most_of_the_seeds() -> None:
    plain: dict[str, object] = {"mean_replicas": 2.0, "peak_replicas": 3.0, "gpu_hours": 0.2}
    plain |= {"K": 0, "scale_outs": 1.0, FIRST: 75.0}

    def one(first_s: float | None, hours: float, ttft_ms: float) -> dict[str, object]:
        return {FIRST: first_s, "gpu_hours": hours, STARTING_TTFT: ttft_ms}

    pairs = [
        (one(75.0, 0.13, 120.0), one(75.0, 0.2, 500.0)),
        (one(105.0, 0.14, 122.0), one(75.0, 0.2, 100.0)),
    ]
    for seeds, end in (
        (2, "which is not settled (least and most of 2 seeds)."),
        (1, "another (replications)."),
    ):
        mine = {**plain, "K": 3, "replications": seeds, **scaling_against(pairs[:seeds])}
        said = scaling_said([plain, mine], ["K"], {"K": 0})[-1]
        assert said.endswith(end)
        assert ("0 to 30 s later" in said) == (seeds == 2) and "0.65" in said
    pairs[1] = (one(None, 0.14, 122.0), pairs[1][1])
    mine = {**plain, "K": 3, "replications": 2, FIRST: None, **scaling_against(pairs)}
    assert "adds replicas in some seeds only" in scaling_said([plain, mine], ["K"], {"K": 0})[-1]
