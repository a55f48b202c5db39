"""Files with several pools: what each is made of, where a fault is said, what the results hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import specfleet as sf
from specfleet.experiments.load.config import load, load_experiment, resolved
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.page.write import write_report
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.experiments.point.ceiling import ceiling
from specfleet.experiments.run.check import check
from specfleet.experiments.run.explain import explain_pools
from specfleet.experiments.run.results import number, read_results
from specfleet.experiments.run.runner import simulate_into
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.schema.pools import pool_experiments
from specfleet.experiments.schema.yamlfile import Value
from specfleet.experiments.words.check import check_text
from specfleet.sim.scenario import RunResult
from specfleet.sim.simulation import simulate
from specfleet.workloads.requests import RequestTable

FILE = """\
seed: 1
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  max_model_len: 8192
  speculative_config:
    {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}
acceptance:
  code: {by_position: [0.8, 0.65, 0.5], concentration: 10}
  chat: {by_position: [0.5, 0.25, 0.12], concentration: 10}
deployment:
  pools:
    fast: {replicas: 2}
    plain:
      replicas: 1
      serve:
        speculative_config: null
        gpu: h200-sxm
  router:
    by_class: {code: fast, chat: plain}
    then: least_outstanding
workload:
  {input_len: 100, output_len: 20, mix: {code: 0.5, chat: 0.5}, request_rate: 20, num_prompts: 60}
"""


def written(folder: Path, text: str = FILE) -> Path:
    """A file in a folder."""
    path = folder / "pools.yaml"
    path.write_text(text)
    return path


def faults(folder: Path, text: str) -> list[str]:
    """What is wrong with a file: line, key and message of each fault."""
    with pytest.raises(InputFaults) as raised:
        load(written(folder, text))
    return [f"{fault.line} {fault.key}: {fault.message}" for fault in raised.value.faults]


def test_a_pool_is_the_file_with_its_own_keys_in_place(tmp_path: Path) -> None:
    (point,) = expand(load_experiment(written(tmp_path)))
    pools = pool_experiments(point.config)
    assert list(pools) == ["fast", "plain"]
    assert (pools["fast"].serve.gpu, pools["plain"].serve.gpu) == ("h100-sxm", "h200-sxm")
    assert pools["fast"].serve.speculative_config is not None
    assert pools["plain"].serve.speculative_config is None and pools["plain"].acceptance is None
    built = build(point.config)
    assert [(pool.name, pool.members) for pool in built.scenario.pools] == [("fast", (0, 1)), ("plain", (2,))]
    assert built.gpus == 3 and built.scenario.deployment.replicas == 3
    assert [pool.engine.num_speculative_tokens for pool in built.scenario.pools] == [3, 0]


@pytest.mark.parametrize("router", ["round_robin", "least_outstanding"])
def test_one_pool_gives_the_figures_of_the_file_without_pools(tmp_path: Path, router: str) -> None:
    plain, pools = yaml.safe_load(FILE), yaml.safe_load(FILE)
    plain["deployment"] = {"replicas": 2, "router": router}
    pools["deployment"] = {"pools": {"only": {"replicas": 2}}, "router": router}
    benches, requests = [], []
    for place, given in enumerate((plain, pools)):
        (point,) = expand(load_experiment(given))
        simulate_into(tmp_path / str(place), point.config, 1, every_turn=False)
        benches.append((tmp_path / str(place) / "bench.json").read_bytes())
        rows = (tmp_path / str(place) / "requests.csv").read_text().splitlines()
        requests.append(rows)
    assert benches[0] == benches[1]
    header = requests[1][0].split(",")
    at = header.index("pool")
    without = [",".join(cell for i, cell in enumerate(row.split(",")) if i != at) for row in requests[1]]
    assert without == requests[0]


def test_what_a_run_wrote_loads_to_an_equal_experiment(tmp_path: Path) -> None:
    experiment = load_experiment(written(tmp_path))
    again = tmp_path / "again.yaml"
    again.write_text(resolved(experiment))
    assert load_experiment(again) == experiment
    assert "plain:\n      replicas: 1" in resolved(experiment)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("gpu: h200-sxm", "gpu: h300", "18 deployment.pools.plain.serve.gpu"),
        ("gpu: h200-sxm", "gpus: h200", "18 deployment.pools.plain.serve.gpus: unknown key"),
        ("gpu: h200-sxm", "tensor_parallel_size: 5", "18 deployment.pools.plain.serve.tensor_parallel_size"),
        ("gpu: h200-sxm", "max_num_seqs: 9000", "18 deployment.pools.plain.serve.max_num_seqs"),
        ("chat: plain}", "chat: slow}", "20 deployment.router.by_class.chat: 'slow' is no pool"),
        (", chat: plain}", "}", "20 deployment.router.by_class: does not say where class 'chat' goes"),
        ("chat: plain}", "chat: plain, math: fast}", "20 deployment.router.by_class.math: no request is of"),
        (
            "  router:",
            "  replicas: 3\n  router:",
            "19 deployment.replicas: every pool has replicas",
        ),
        ("replicas: 1", "replicas: 1\n      slow: [{factor: 2}]", "16 deployment.pools.plain.slow"),
        ("replicas: 2}", "replicas: 2, slow: [{factor: 2, replicas: [2]}]}", "there is no replica 2"),
        ("speculative_config: null", "speculative_config: 3", "17 deployment.pools.plain.serve.speculative"),
    ],
)
def test_a_fault_of_a_pool_is_said_once_at_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    found = faults(tmp_path, FILE.replace(old, new, 1))
    assert len(found) == 1 and said in found[0], found


def test_a_fault_that_all_pools_share_is_said_once_at_the_top(tmp_path: Path) -> None:
    found = faults(tmp_path, FILE.replace("max_model_len: 8192", "tensor_parallel_size: 5"))
    assert [line.split(":")[0] for line in found] == ["5 serve.tensor_parallel_size"]


def test_a_sweep_reaches_into_a_pool_and_past_one_that_says_otherwise(tmp_path: Path) -> None:
    axes: dict[str, Value] = {
        "serve.max_num_seqs": (32, 64),
        "deployment.pools.plain.serve.max_num_batched_tokens": (1024, 2048),
        "deployment.pools.fast.replicas": (1, 3),
    }
    points = expand(load_experiment(written(tmp_path), [("sweep.axes", axes)]))
    pools = [pool_experiments(point.config) for point in points]
    assert len(points) == 8
    assert {each["fast"].serve.max_num_seqs for each in pools} == {32, 64}
    assert {each["plain"].serve.max_num_batched_tokens for each in pools} == {1024, 2048}
    assert {each["fast"].serve.max_num_batched_tokens for each in pools} == {8192}
    assert {each["fast"].deployment.replicas for each in pools} == {1, 3}


def test_check_prints_each_pool_with_its_memory_and_explain_its_step(tmp_path: Path) -> None:
    said = check_text(check(written(tmp_path), ()))
    assert "pool fast: 2 replicas of 1 x h100-sxm, eagle3, K = 3" in said
    assert "pool plain: 1 replica of 1 x h200-sxm, no drafts" in said
    assert "Memory of one GPU, fast:" in said and "Memory of one GPU, plain" in said
    assert "stepped" not in said
    steps = explain_pools(written(tmp_path), (), 8, 512, 3)
    assert steps["fast"].drafting is not None and steps["plain"].drafting is None
    assert steps["plain"].place.accelerator.name == "h200"


def test_results_tell_pools_apart(tmp_path: Path) -> None:
    made = sf.load(written(tmp_path)).run(out=tmp_path / "out")
    results = read_results(tmp_path / "out")
    (row,) = results.rows
    requests = results.requests("point")
    assert set(requests.loc[requests["class_id"] == 0, "pool"]) == {0}
    assert set(requests.loc[requests["class_id"] == 1, "pool"]) == {1}
    engine = json.loads((results.folder_of("point") / "engine.json").read_text())
    fast, plain = engine["pools"]
    assert number(row, "pool:fast:requests") + number(row, "pool:plain:requests") == 60
    assert fast["requests"] == (requests["pool"] == 0).sum() and fast["acceptance_length"] > 1.5
    assert plain["acceptance_length"] == 1.0 and "gain" not in plain and fast["gain"] > 1.0
    assert fast["gpu_hours"] == pytest.approx(2 * plain["gpu_hours"])
    assert [replica["pool"] for replica in engine["replicas"]] == ["fast", "fast", "plain"]
    assert "By pool:" in made.answer
    page = write_report(tmp_path / "out").read_text()
    assert "By pool" in page


def test_a_straggler_takes_longer_and_nothing_else_changes(tmp_path: Path) -> None:
    slow: list[tuple[str, Value]] = [("deployment.pools.fast.slow", ({"replicas": (1,), "factor": 2.0},))]
    (point,) = expand(load_experiment(written(tmp_path), slow))
    scenario = build(point.config).scenario
    assert [(pool.name, pool.members) for pool in scenario.pools] == [
        ("fast", (0,)),
        ("fast", (1,)),
        ("plain", (2,)),
    ]
    share: list[tuple[str, Value]] = [("deployment.pools.fast.slow", ({"share": 0.01, "factor": 2.0},))]
    (other,) = expand(load_experiment(written(tmp_path), share))
    assert [pool.members for pool in build(other.config).scenario.pools] == [(0,), (1,), (2,)]


def test_a_ceiling_is_of_the_classes_that_a_pool_gets(tmp_path: Path) -> None:
    found = {}
    for drafted in ("code", "chat"):
        other = "chat" if drafted == "code" else "code"
        router: list[tuple[str, Value]] = [
            ("deployment.router.by_class", {drafted: "fast", other: "plain"}),
            ("deployment.pools.plain.replicas", 9),
            ("workload.output_len", 200),
        ]
        (point,) = expand(load_experiment(written(tmp_path), router))
        top = ceiling(point.config, 1)
        assert top is not None
        found[drafted] = top
        assert "pool fast" in found[drafted].binds
    assert found["code"].per_s > 1.2 * found["chat"].per_s


ENGINES = """\
name: two
serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm, max_model_len: 8192, tensor_parallel_size: 2}
deployment:
  pools:
    a:
      replicas: 1
      serve: {engine: sglang, max_running_requests: 64, chunked_prefill_size: 2048}
    b: {replicas: 1, serve: {engine: trtllm, max_batch_size: 32}}
workload: {input_len: 50, output_len: 10, request_rate: 10, num_prompts: 20}
"""


def test_a_pool_is_written_in_the_words_of_its_own_engine(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(ENGINES)
    a, b = pool_experiments(load(file).experiment).values()
    assert (a.serve.max_num_seqs, a.serve.max_num_batched_tokens, a.serve.tensor_parallel_size) == (
        64,
        2048,
        2,
    )
    assert b.serve.max_num_seqs == 32
    file.write_text(ENGINES.replace("engine: sglang,", "engine: sglang, max_num_seqs: 3,"))
    with pytest.raises(
        InputFaults, match=r"two\.yaml:7: deployment\.pools\.a\.serve\.max_running_requests: is max_num"
    ):
        load(file)


AXES = """\
sweep:
  axes:
    deployment.pools.a.serve.mem-fraction-static: [0.7, 0.8]
    deployment.pools.a.serve.disable_radix_cache: [true, false]
    deployment.pools.b.serve.kv_cache_config.free_gpu_memory_fraction: [0.5, 0.9]
"""


def test_a_sweep_over_a_pool_is_written_in_the_words_of_its_own_engine(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(ENGINES + AXES)
    found = [pool_experiments(point.config) for point in expand(load(file).experiment)]
    assert [
        (pools["a"].serve.gpu_memory_utilization, pools["a"].serve.enable_prefix_caching) for pools in found
    ] == [(share, cached) for share in (0.7, 0.8) for cached in (False, True) for _ in range(2)]
    assert [pools["b"].serve.gpu_memory_utilization for pools in found] == [0.5, 0.9] * 4
    assert {pools["a"].serve.max_num_seqs for pools in found} == {64}, "what is not swept stays"


def test_a_fault_of_such_a_sweep_is_said_at_its_line(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(ENGINES + AXES.replace("[0.7, 0.8]", "[0.7, 1.5]"))
    said = r"two\.yaml:12: sweep\.axes\.deployment\.pools\.a\.serve\.gpu_memory_utilization: value 1\.5: must"
    with pytest.raises(InputFaults, match=said):
        load(file)


LENGTHS = """\
name: lengths
serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm, max_model_len: 4096}
deployment:
  pools:
    short: {replicas: 1}
    long: {replicas: 1, serve: {max_model_len: 8192}}
  router: least_outstanding
workload: {trace: log.csv, on_too_long: drop, num_prompts: 30}
"""


def of_lengths(tmp_path: Path, *changes: str) -> tuple[RequestTable, RunResult]:
    """Requests of 300, 6,000 and 9,000 tokens in front of both pools; what becomes of them."""
    rows = [f"2023-11-16 18:00:{at:02d}.0,{(300, 6000, 9000)[at % 3]},20" for at in range(59)]
    (tmp_path / "log.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    file = tmp_path / "lengths.yaml"
    file.write_text(LENGTHS)
    (point,) = expand(load_experiment(file, changes))
    table = requests(point.config, 0)
    return table, simulate(build(point.config).scenario, table, 0)


def test_a_recorded_request_goes_to_a_pool_that_holds_it(tmp_path: Path) -> None:
    table, result = of_lengths(tmp_path)
    assert sorted(set(table.prompt_tokens.tolist())) == [300, 6000], "what no pool holds is dropped"
    longer = table.prompt_tokens > 4096
    assert (result.requests["pool"][longer] == 1).all() and not result.refusals
    assert (result.requests["pool"][~longer] == 0).any()


def test_a_recorded_request_is_refused_where_its_class_may_go_nowhere_else(tmp_path: Path) -> None:
    router = "deployment.router={by_class: {chat: long}, otherwise: short}"
    table, result = of_lengths(tmp_path, router)
    ((reason, count),) = result.refusals.items()
    assert count == (table.prompt_tokens > 4096).sum() and "4096" in reason


def test_what_no_pool_holds_is_said_once_of_the_longest(tmp_path: Path) -> None:
    with pytest.raises(InputFaults) as caught:
        of_lengths(tmp_path, "workload.on_too_long=error")
    (fault,) = caught.value.faults
    assert fault.key == "deployment.pools.long.serve.max_model_len" and "is 8192" in fault.message
