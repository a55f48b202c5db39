"""`import specfleet`: the same experiments, results and words as the command's, from Python."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from report_runs import FILE, LOAD, K, simulated

import specfleet as sf
from specfleet.experiments.cli.main import main
from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point import build
from specfleet.experiments.schema.blocks.experiment import Experiment as Block
from specfleet.experiments.schema.yamlfile import parse
from specfleet.workloads.requests import RequestTable

ROOT = Path(__file__).parents[2]
HEAVY = {"numpy", "pandas", "pydantic", "matplotlib", "simpy", "yaml", "typer"}
WIDE = "serve.max_num_seqs"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment of a few tenths of a second."""
    path = tmp_path_factory.mktemp("api") / "small.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def result(small: Path) -> sf.Result:
    """Its result."""
    return sf.load(small).run()


def printed(capsys: pytest.CaptureFixture[str], *command: str | Path) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in command])
    said = capsys.readouterr()
    return int(str(ended.value.code or 0)), said.out, said.err


def test_importing_it_imports_none_of_what_it_needs() -> None:
    code = f"import sys, specfleet; print({HEAVY!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "set()"


def test_the_page_on_python_has_every_name() -> None:
    page = (ROOT / "docs/python.md").read_text()
    assert not [name for name in sf.__all__ if f"sf.{name}" not in page]
    for kind, of in ((sf.Experiment, "Experiment"), (sf.Result, "Result")):
        public = [name for name in vars(kind) if not name.startswith("_")] + list(kind.__annotations__)
        listed = page.partition(f"`{of}`: ")[2].partition("|")[0]
        assert sorted(re.findall(r"`(\w+)", listed)) == sorted(n for n in public if not n.startswith("_"))


def test_type_checkers_and_python_find_every_name_in_the_same_place() -> None:
    tree = ast.parse(Path(sf.__file__).read_text())
    [checked] = [node for node in tree.body if isinstance(node, ast.If) and "TYPE" in ast.unparse(node.test)]
    seen = {
        alias.name: str(node.module).removeprefix("specfleet.")
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == sf._HOMES
    assert {*seen, "__version__"} == set(sf.__all__)
    for name in sf.__all__:
        assert getattr(sf, name) is not None
    with pytest.raises(AttributeError, match="simulation"):
        sf.simulation  # noqa: B018


values = st.one_of(st.integers(1, 256), st.sampled_from([None, 0.5, 1.0]), st.booleans())
keys = st.sampled_from(
    [WIDE, "serve.gpu_memory_utilization", "seed", "client.send_ms", "workload.burstiness"]
)


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(keys, values, min_size=1))
def test_a_change_means_what_it_means_on_the_command_line(changes: dict[str, object]) -> None:
    data = parse(FILE, "small.yaml").data
    typed = [f"{key}={yaml.safe_dump(value).split(chr(10))[0]}" for key, value in changes.items()]
    try:
        expected = expand(load_experiment(data, typed))
    except sf.UserError as error:
        with pytest.raises(sf.UserError) as mistake:
            sf.load(data, changes)
        assert str(mistake.value) == str(error).replace("command line", "overrides")
    else:
        assert sf.load(data, changes).points == expected


def test_a_mapping_a_file_and_keywords_say_the_same(small: Path) -> None:
    data = yaml.safe_load(FILE)
    whole = sf.load(small, {WIDE: 32, "seed": 9}).points
    assert sf.load(data, {WIDE: np.int64(32), "seed": 9}).points == whole
    assert sf.load(str(small), seed=9, serve={"max_num_seqs": 32}).points == whole
    swept = sf.load(small, sweep={"axes": {LOAD: np.array([2, 4])}}, report={"baseline": None}, claim=None)
    assert [point.axes[LOAD] for point in swept.points] == [2, 4]


def test_what_no_file_can_hold_is_said_by_its_key(small: Path) -> None:
    with pytest.raises(sf.UserError, match=r"overrides: serve\.gpu: a set is nothing that a file can hold"):
        sf.load(small, {"serve.gpu": {"h100-sxm"}})
    with pytest.raises(sf.UserError, match=r"experiment: serve\.model: is required"):
        sf.load({"serve": {"gpu": "h100-sxm"}, "workload": {"input_len": 1, "output_len": 2}})


def test_a_mistake_reads_as_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(FILE.replace("max_num_seqs: 64", "max_num_seq: 64").replace("seed: 3", "seed: three"))
    with pytest.raises(sf.UserError) as mistake:
        sf.load(wrong)
    assert printed(capsys, "check", wrong) == (2, "", f"{mistake.value}\n")
    assert f"{wrong}:3: seed: must be a whole number" in str(mistake.value)
    assert mistake.value.__cause__ is None
    with pytest.raises(sf.UserError, match="no such file"):
        sf.load(tmp_path / "missing.yaml")
    with pytest.raises(sf.UserError, match="not the folder of a finished run"):
        sf.results(tmp_path)


def test_check_says_what_the_command_says(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "check", small) == (0, f"{sf.load(small).check()}\n", "")


def test_a_run_from_python_writes_what_the_command_writes(tmp_path: Path, small: Path) -> None:
    changes = {"workload.num_prompts": 20, "replications": 1}
    mine = sf.load(small, changes).run(out=tmp_path / "python").folder
    theirs = simulated(tmp_path, "workload.num_prompts=20", "replications=1")
    files = {path.relative_to(theirs) for path in theirs.rglob("*.*") if path.is_file()}
    assert files == {path.relative_to(mine) for path in mine.rglob("*.*") if path.is_file()}
    assert all((mine / file).read_bytes() == (theirs / file).read_bytes() for file in files)


def test_the_answer_is_what_the_command_prints(
    tmp_path: Path, result: sf.Result, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = printed(capsys, "run", small, "--out", tmp_path / "run", "--no-plots", "--jobs", "1")
    assert out == f"{result.answer}\nresults: {tmp_path / 'run'}\n"
    assert sf.results(tmp_path / "run").answer == result.answer


def test_a_result_has_its_figures_and_requests_as_frames(result: sf.Result) -> None:
    assert list(result.summary["point"]) == [
        point.id for point in sf.load(result.folder / "resolved.yaml").points
    ]
    assert len(result.requests) == 6 * 2 * 60
    assert set(result.requests["seed"]) == {3, 4}
    one = result.summary["point"][1]
    mine = result.requests[(result.requests["point"] == one) & (result.requests["seed"] == 4)]
    assert list(mine["finished_ms"]) == list(result.requests_of(one, 4)["finished_ms"])
    assert result.bench(one, 4)["completed"] == 60
    assert 0.0 < float(str(result.engine(one)["mean_batch"])) <= 64.0
    assert result.failures == {}


def test_a_figure_is_drawn_by_name(result: sf.Result) -> None:
    assert {"speedup", "throughput", "tails"} <= set(result.plots)
    said = {name: result.plot(name).axes[0].get_ylabel() for name in ("throughput", "p90_ttft_ms")}
    assert len({*said.values(), result.plot().axes[0].get_ylabel()}) == 3
    with pytest.raises(sf.UserError, match="this run has no sped; did you mean speedup"):
        result.plot("sped")


@pytest.mark.parametrize("ask", ["requests_of", "bench", "engine"])
def test_a_point_that_is_not_there_is_answered_with_those_that_are(result: sf.Result, ask: str) -> None:
    with pytest.raises(sf.UserError, match=r"there is no point 'p'; .*max_concurrency=1"):
        getattr(result, ask)("p")
    with pytest.raises(sf.UserError, match="there are 6 points"):
        getattr(result, ask)()


def test_a_folder_that_nobody_asked_for_goes_with_its_result(small: Path) -> None:
    found = sf.load(small, {"workload.num_prompts": 4}).run()
    folder = found.folder
    assert folder.is_dir()
    del found
    assert not folder.exists()


def test_a_point_is_simulated_by_hand_as_the_run_simulates_it(small: Path, result: sf.Result) -> None:
    experiment = sf.load(small)
    point = experiment.points[3]
    ran = sf.simulate(experiment.scenario(point), experiment.requests(point.id, 4), 4)
    theirs = result.requests_of(point.id, 4)
    assert np.allclose(ran.requests["last_chunk_s"] * 1e3, theirs["last_chunk_ms"], atol=1e-6)
    with pytest.raises(sf.UserError, match="there are 6 points"):
        experiment.scenario()


def test_simulations_that_fail_are_told_and_the_others_kept(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = {4}

    def requests(config: Block, seed: int) -> RequestTable:
        if seed in failing:
            raise ValueError(f"no requests for seed {seed}")
        return build.requests(config, seed)

    monkeypatch.setattr("specfleet.experiments.run.runner.requests", requests)
    with pytest.warns(UserWarning, match=r"6 of 12 simulations failed: .*no requests for seed 4"):
        found = sf.load(small, {"workload.num_prompts": 4}).run()
    assert len(found.failures) == 6
    failing.add(3)
    with pytest.raises(sf.UserError, match="12 of 12 simulations failed"):
        sf.load(small, {"workload.num_prompts": 4}).run()


@pytest.mark.parametrize(
    ("guard", "said"),
    [("if True:", "Each worker imports the script"), ('if __name__ == "__main__":', "(2, ")],
)
def test_a_script_that_starts_workers_needs_a_guard_and_is_told_so(
    small: Path, tmp_path: Path, guard: str, said: str
) -> None:
    script = tmp_path / "script.py"
    run = f"print(sf.load({str(small)!r}, changes).run(jobs=2).summary.shape)"
    changes = {"workload.num_prompts": 4, "replications": 1, f"sweep.axes.{LOAD}": [1], "claim": None}
    script.write_text(f"import specfleet as sf\n\nchanges = {changes}\n{guard}\n    {run}\n")
    paths = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=paths)
    assert said in done.stdout + done.stderr


def test_the_studies_answer_in_their_own_types(small: Path, tmp_path: Path) -> None:
    axes = {LOAD: [1, 8], K: [0, 3]}
    search = sf.breakeven(small, {"workload.num_prompts": 16}, replications=1, sweep={"axes": axes})
    assert set(search.found) == {(load, k, 3) for load in (1.0, 8.0) for k in (0, 3)}
    asked = sf.load(small, {"workload.num_prompts": 16}, replications=1)
    assert sf.breakeven(asked, sweep={"axes": axes}).found == search.found
    changes = {"sweep.axes": {}, "report": {}, "claim": None, "slo": {"p50_tpot_ms": 60, "p50_ttft_ms": 5000}}
    plan = {"candidates": {"gpu": ["h100-sxm"], "tensor_parallel_size": [1]}}
    load = {"request_rate": 4.0, "max_concurrency": None, "num_prompts": 100}
    planned = sf.plan(small, changes, workload=load, plan=plan, replications=1, out=tmp_path / "plan")
    assert planned.winner is not None and (tmp_path / "plan" / "rollout.md").is_file()
