"""What a file says of replicas that fail: done, or refused at its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_autoscale_files import finished
from test_pool_files import faults, written

from specfleet.experiments.figures.failures import AroundFailures
from specfleet.experiments.figures.run import draw_run
from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.page.write import write_report
from specfleet.experiments.point.built import build
from specfleet.experiments.run.check import check
from specfleet.experiments.run.runner import simulate_into
from specfleet.experiments.words.check import check_text
from specfleet.experiments.words.costs.outages import failures_said
from specfleet.sim.fleet.failing import ChanceConfig, FailureConfig, FailuresConfig

FILE = """\
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  max_model_len: 2048
  speculative_config:
    {model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, method: eagle3, num_speculative_tokens: 3}
acceptance: {conditional_acceptance: 0.7}
deployment:
  replicas: 3
  router: least_outstanding
  failures:
    at: [{replica: 1, at_s: 0.4, for_s: 1}]
    detect_s: 0.2
    retry: {most: 3, backoff_s: 0.1, keep_partial: true}
workload: {input_len: 200, output_len: 80, request_rate: 40, num_prompts: 60}
"""
FAILURES = FILE[FILE.index("    at:") : FILE.index("workload")]


def other(text: str) -> str:
    """The file with other keys of its failures, a line each."""
    return FILE.replace(FAILURES, "".join(f"    {line}\n" for line in text.split("\n")))


@pytest.mark.parametrize("gateway", ["", "  gateway: {max_outstanding: 8}\n"])
def test_a_failure_is_simulated_counted_and_told(tmp_path: Path, gateway: str) -> None:
    path = written(tmp_path, FILE.replace("  failures:", f"{gateway}  failures:"))
    said = check_text(check(path, []))
    assert (
        "failures: replica 1 dies at 0.4 s for 1 s; found after 0.2 s; lost requests are sent anew 3 times"
        in said
    )
    assert "will be stepped, 2 to 25 times as long: replicas that fail" in " ".join(said.split())
    (point,) = expand(load_experiment(path))
    simulate_into(tmp_path / "point", point.config, 1, every_turn=True)
    found = json.loads((tmp_path / "point" / "engine.json").read_text())
    header, *rows = (tmp_path / "point" / "requests.csv").read_text().splitlines()
    retries = [int(row.split(",")[header.split(",").index("retries")]) for row in rows]
    assert found["failures"] == 1 and found["retried"] == sum(n > 0 for n in retries) > 0
    assert found["lost"] == 0 and found["recomputed_tokens"] > 0 and found["wasted_tokens"] == 0
    assert found["downtime_s"] == pytest.approx(1.0)
    (outage,) = found["outages"]
    assert (outage["at_s"], outage["found_s"], outage["back_s"]) == (
        0.4,
        pytest.approx(0.6),
        pytest.approx(1.4),
    )


def test_a_failure_is_drawn_beside_the_run_and_in_its_page(tmp_path: Path) -> None:
    ran = finished(written(tmp_path, FILE), tmp_path / "run", 1)
    assert "failures.png" in [path.name for path in draw_run(ran.folder)]
    page = write_report(ran.folder).read_text()
    assert 'alt="around failures of replicas"' in page and "img-src data:" in page
    healthy = finished(written(tmp_path, FILE.replace(f"  failures:\n{FAILURES}", "")), tmp_path / "well", 1)
    assert "failures.png" not in [path.name for path in draw_run(healthy.folder)]
    assert "data:image" not in write_report(healthy.folder).read_text()


def test_what_is_drawn_of_failures_is_what_happened() -> None:
    columns = {
        "sent_ms": [0.0, 1000.0, 2000.0],
        "first_chunk_ms": [500.0, 2000.0, np.nan],
        "last_chunk_ms": [2500.0, 2000.0, np.nan],
        "output_tokens": [40.0, 1.0, 0.0],
    }
    never: dict[str, Any] = {"at_s": 2.0, "found_s": None, "back_s": None}
    outages = ({"at_s": 1.0, "found_s": 1.5, "back_s": 3.0}, never)
    story = AroundFailures("", 3, outages, {name: np.array(values) for name, values in columns.items()})
    times, well = story.well(4.0)
    assert (times.tolist(), well.tolist()) == ([0.0, 1.0, 2.0, 3.0, 4.0], [3.0, 2.0, 1.0, 2.0, 2.0])
    edges = np.array([0.0, 0.5, 1.0, 3.0])
    assert (story.written(edges) * np.diff(edges)).tolist() == pytest.approx([0.0, 10.0, 31.0])


def test_every_key_reaches_the_simulator(tmp_path: Path) -> None:
    text = """\
at: [{replica: 0, at_s: 1, kind: slow, factor: 4}, {replica: 2, at_s: 2, for_s: 3}]
mtbf_s: 100
repair_s: 20
kind: hangs
detect_s: 5
retry: {most: 2, backoff_s: 0.5, keep_partial: true}"""
    (point,) = expand(load_experiment(written(tmp_path, other(text))))
    at = FailureConfig(0, 1.0, 20.0, "slow", 4.0), FailureConfig(2, 2.0, 3.0, "hangs", 1.0)
    expected = FailuresConfig(at, 100.0, 20.0, "hangs", 1.0, 5.0, 2, 0.5, True)
    assert build(point.config).scenario.deployment.failures == expected


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("detect_s: 1", 11, "nothing fails: give at or mtbf_s"),
        ("at: [{replica: 3, at_s: 1}]\ndetect_s: 1", 12, "there is no replica 3"),
        ("mtbf_s: 5\ndetect_s: 1", 12, "say how long a repair takes: repair_s"),
        ("at: [{replica: 0, at_s: 1}]", 11, "say how long health checks take to find a failure: detect_s"),
        (
            "at: [{replica: 0, at_s: 1}]\nkind: slow",
            11,
            "say how many times as long a slow step takes: factor",
        ),
        ("at: [{replica: 0, at_s: 1}]\ndetect_s: 1\nfactor: 2", 14, "no replica is slow"),
        ("at: [{replica: 0, at_s: 1, factor: 2}]\ndetect_s: 1", 12, "this replica is not slow"),
        ("at: [{replica: 0, at_s: 1, for_s: 1}]\ndetect_s: 1\nrepair_s: 2", 14, "every failure says for_s"),
        ("at: [{replica: 0, at_s: 1, kind: burns}]\ndetect_s: 1", 12, "kind"),
    ],
)
def test_what_is_said_of_failures_is_whole_and_says_something(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    (fault,) = faults(tmp_path, other(text))
    assert fault.startswith(f"{line} ") and said in fault


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  router: least_outstanding\n", "  router: session\n", "session remembers what it sent where"),
        ("  max_model_len", "  data_parallel_size: 2\n  max_model_len", "data_parallel_size"),
        ("workload:", "report: {requests: none}\nworkload:", "figures alone are kept of equal replicas"),
        ("  replicas: 3\n", "  pools: {a: {replicas: 3}}\n", "say of which pool: add pool: a"),
        (
            "  replicas: 3\n",
            "  pools: {a: {serve: {pipeline_parallel_size: 2}}}\n",
            "several engines that fail",
        ),
    ],
)
def test_what_does_not_fail_yet_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    found = faults(tmp_path, FILE.replace(old, new))
    assert any(said in fault for fault in found)


POOLED = FILE.replace(
    "  replicas: 3\n", "  pools: {a: {replicas: 2}, b: {serve: {speculative_config: null}}}\n"
)


def pooled(failures: str) -> str:
    """The file with two pools and these failures."""
    head, tail = POOLED.split("  failures:\n")
    rest = tail[tail.index("workload:") :]
    return head + "  failures:\n" + "".join(f"    {line}\n" for line in failures.splitlines()) + rest


def test_pools_fail_each_by_its_own_law(tmp_path: Path) -> None:
    text = """\
at: [{pool: b, replica: 0, at_s: 1, for_s: 2}]
mtbf_s: 100
repair_s: 20
detect_s: 5
pools: {b: {mtbf_s: null}}"""
    (point,) = expand(load_experiment(written(tmp_path, pooled(text))))
    found = build(point.config).scenario.deployment.failures
    assert found is not None
    assert found.at == (FailureConfig(2, 1.0, 2.0, "dies", 1.0),)
    assert [found.chance(n).mtbf_s for n in range(3)] == [100.0, 100.0, None]
    said = check_text(check(written(tmp_path, pooled(text)), ()))
    assert "replica 0 of b dies at 1 s for 2 s; each dies after 100 s on average, for 20 s;" in said
    slow = text.replace("{mtbf_s: null}", "{kind: slow, factor: 3, repair_s: 4, mtbf_s: 50}")
    (point,) = expand(load_experiment(written(tmp_path, pooled(slow))))
    found = build(point.config).scenario.deployment.failures
    assert found is not None and found.chance(2) == ChanceConfig(50.0, 4.0, "slow", 3.0)


def test_a_run_of_pools_says_which_of_them_failed(tmp_path: Path) -> None:
    text = "at: [{pool: a, replica: 1, at_s: 0.4, for_s: 0.5}]\ndetect_s: 0.1\nretry: {most: 9}"
    (point,) = expand(load_experiment(written(tmp_path, pooled(text))))
    simulate_into(tmp_path / "point", point.config, 1, every_turn=True)
    found = json.loads((tmp_path / "point" / "engine.json").read_text())
    (outage,) = found["outages"]
    assert (outage["pool"], outage["replica"], outage["at_s"]) == ("a", 1, 0.4)
    assert (
        found["retried"] > 0
        and found["lost"] == 0
        and [pool["pool"] for pool in found["pools"]] == ["a", "b"]
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("at: [{pool: c, replica: 0, at_s: 1, for_s: 1}]\ndetect_s: 1", "at[0].pool: 'c' is no pool"),
        ("at: [{pool: b, replica: 1, at_s: 1, for_s: 1}]\ndetect_s: 1", "no replica 1 in pool b: the 1 are"),
        ("pools: {b: {mtbf_s: 5}}\ndetect_s: 1", "pools.b.mtbf_s: say how long a repair takes"),
        ("pools: {b: {mtbf_s: 5, repair_s: 1, kind: slow}}", "pools.b: say how many times as long"),
        ("pools: {b: {mtbf_s: null}}\ndetect_s: 1", "nothing fails"),
        ("mtbf_s: 9\nrepair_s: 1\ndetect_s: 1\npools: {b: {mtbf_s: null, repair_s: 3}}", "fails by chance"),
        ("mtbf_s: 9\nrepair_s: 1\ndetect_s: 1\npools: {c: {mtbf_s: 4}}", "failures.pools.c: 'c' is no pool"),
    ],
)
def test_what_is_said_of_a_pool_that_fails_is_whole(tmp_path: Path, text: str, said: str) -> None:
    (fault,) = faults(tmp_path, pooled(text))
    assert said in fault


def test_a_sentence_says_what_failures_cost() -> None:
    row: dict[str, object] = {
        "K": 3,
        "failures": 1,
        "availability": 0.9,
        "retried": 12,
        "lost": 0,
        "recomputed_tokens": 4000,
    }
    row |= {"wasted_tokens": 0, "recovery_s": 2.5, "p99_ttft_recovering_ms": 900, "p99_ttft_otherwise_ms": 90}
    (said,) = failures_said([row], [])
    assert "1 failure, 90.00% of replica time available; 12 requests sent anew, 0 lost" in said
    assert "ended 2.5 s after it; P99 TTFT 900 ms while the fleet recovered, 90 ms otherwise." in said
    assert failures_said([{"K": 3}], []) == []
