"""The folder of a run: nothing of a user's is lost, and nothing half or old is taken for a run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_folders import FILE, in_an_empty_folder, refused, run, specfleet

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.plan.traffic import Trial
from specfleet.experiments.plan.trials import trial_key
from specfleet.experiments.run.files import FolderFault
from specfleet.experiments.run.folder import located, manifest_of
from specfleet.experiments.run.inputs import changed_files, input_files
from specfleet.experiments.run.lock import NAME as LOCK
from specfleet.experiments.run.lock import Lock, LockHolder, holder
from specfleet.experiments.run.results import read_results

ROOT = Path(__file__).parents[3]
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02d}.0000000,{{}},{{}}\n" for second in range(10)
)
STAY = ("summary.csv", "resolved.yaml", "experiment.yaml", "points/*/*")
"""What is the same bytes however often a run was cut short."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with the experiment x.yaml."""
    return in_an_empty_folder(tmp_path, monkeypatch)


def content(folder: Path) -> dict[str, bytes]:
    """What a run wrote, by path."""
    files = [path for pattern in STAY for path in folder.glob(pattern)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def cut_short(folder: Path, point: str = "max_num_seqs=64,seed=0") -> None:
    """Leaves a whole run as it would be had it been killed before its last point."""
    shutil.rmtree(folder / "points" / point)
    (folder / "summary.csv").unlink()
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["summary_sha256"]
    (folder / "manifest.json").write_text(json.dumps(manifest | {"whole": False}))


# Where a run goes


def test_a_second_run_takes_the_next_number_and_the_first_stays_as_it_is() -> None:
    assert "results: results/x/1" in run().stdout
    before = content(Path("results/x/1"))
    assert "results: results/x/2" in run("workload.output_len=10").stdout
    assert content(Path("results/x/1")) == before
    assert located(Path("results/x")) == Path("results/x/2")
    assert located(Path("results/x/1")) == Path("results/x/1")


def test_latest_is_a_file_where_there_are_no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(Path, "symlink_to", no_links)
    run()
    run()
    assert Path("results/x/latest").read_text() == "2\n"
    for name in ("results/x", "results/x/latest"):
        assert located(Path(name)) == Path("results/x/2")


def test_a_run_is_repeated_from_its_own_folder_into_a_new_number() -> None:
    Path("deep").mkdir()
    Path("deep/t.csv").write_text(TRACE.format(*[300, 20] * 10))
    Path("deep/y.yaml").write_text(
        FILE.replace("input_len: 300, output_len: 20, max_concurrency: 8, num_prompts: 20", "trace: t.csv")
    )
    assert run("deep/y.yaml", "sweep={}").exit_code == 0
    again = run("results/x/1/experiment.yaml")
    assert again.exit_code == 0 and "results: results/x/2" in again.stdout
    assert content(Path("results/x/1")) == content(Path("results/x/2"))
    assert manifest_of(Path("results/x/2")) == manifest_of(Path("results/x/1"))


def test_a_run_can_be_repeated_in_its_place() -> None:
    run("--out", "mine")
    before = content(Path("mine"))
    assert run("mine/experiment.yaml", "--out", "mine").exit_code == 0
    assert content(Path("mine")) == before


def test_what_is_there_is_listed_with_what_differs() -> None:
    assert "is not there" in specfleet("results", "list").stderr
    run()
    run("workload.output_len=10")
    cut_short(Path("results/x/2"))
    Path("results/x/2/manifest.json").write_text(Path("results/x/2/manifest.json").read_text())
    said = specfleet("results", "list").stdout.splitlines()
    assert said[1].split()[:2] == ["x/1", "run"] and "2 of 2" in said[1] and "whole" in said[1]
    assert "1 of 2" in said[2] and "not whole" in said[2]
    assert said[2].endswith("workload.output_len: 20 -> 10")
    Path("results/x/1/manifest.json").write_text("{")
    assert "damaged" in specfleet("results", "list", "x").stdout


# Fault 1: a killed re-run was reported with the old figures


@pytest.mark.parametrize("command", ["report", "plot", "compare"])
def test_a_run_that_is_not_whole_is_read_by_nobody(command: str) -> None:
    run()
    cut_short(Path("results/x/1"))
    words = ["results/x/1"] * 2 if command == "compare" else ["results/x"]
    refused(specfleet(command, *words), "results/x/1: is not whole: 1 of 2 simulations are there")


def test_a_run_that_is_not_whole_is_read_where_that_is_asked_for() -> None:
    run()
    whole = read_results("results/x").rows
    manifest = json.loads(Path("results/x/1/manifest.json").read_text())
    Path("results/x/1/manifest.json").write_text(json.dumps(manifest | {"whole": False}))
    with pytest.raises(FolderFault, match="is not whole"):
        read_results("results/x")
    assert read_results("results/x", whole=False).rows == whole


def test_a_replaced_run_is_gone_before_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    run("--out", "mine")
    specfleet("report", "mine")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specfleet.experiments.run.run.Run.execute", killed)
    monkeypatch.setattr("specfleet.experiments.run.run.Run.summary", killed)
    run("workload.num_prompts=30", "--out", "mine")
    assert not any(Path("mine", name).exists() for name in ("summary.csv", "report.html"))
    assert not list(Path("mine").glob("points/*"))
    refused(specfleet("report", "mine"), "0 of 2 simulations are there")


@pytest.mark.parametrize("name", ["resolved.yaml", "summary.csv"])
def test_a_file_changed_afterwards_is_noticed(name: str) -> None:
    run()
    path = Path("results/x/1", name)
    path.write_bytes(path.read_bytes()[:-40])
    refused(specfleet("report", "results/x"), f"results/x/1/{name}: is not what the run wrote")


# Fault 3: what is not ours


def test_a_folder_of_somebody_else_is_left_as_it_is() -> None:
    theirs = {"points/.git/HEAD": "ref", "manifest.json": '{"name": "app"}', "plots/a.svg": "<svg/>"}
    for name, text in theirs.items():
        Path("mine", name).parent.mkdir(parents=True, exist_ok=True)
        Path("mine", name).write_text(text)
    before = {path: path.read_bytes() for path in Path("mine").rglob("*") if path.is_file()}
    refused(run("--out", "mine"), "mine: is not empty and not a folder of `specfleet run`")
    refused(run("--out", "mine", "--resume"), "mine: is not empty")
    assert {path: path.read_bytes() for path in Path("mine").rglob("*") if path.is_file()} == before


def test_a_users_files_in_a_runs_folder_outlive_the_next_run() -> None:
    run("--out", "mine")
    kept = [
        Path("mine", name) for name in ("notes.txt", "points/p.csv", "points/.git/HEAD", "plots/mine.svg")
    ]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    assert run("--out", "mine", "sweep={}").exit_code == 0
    assert all(path.read_text() == "mine" for path in kept)
    assert [path.name for path in Path("mine/points").glob("*seed*")] == ["point,seed=0"]


def test_what_a_kill_leaves_is_tidied_up() -> None:
    left = (".manifest.json.12", f"{LOCK}.12")
    Path("mine").mkdir()
    for name in left:
        Path("mine", name).write_text("{")
    assert run("--out", "mine").exit_code == 0
    for name in (".summary.csv.12", ".resolved.yaml.12", ".notes.12", "points/.max_num_seqs=16,seed=0.12/x"):
        Path("mine", name).parent.mkdir(exist_ok=True)
        Path("mine", name).touch()
    assert run("--out", "mine", "--resume").exit_code == 0
    assert [path.name for path in Path("mine").rglob(".*")] == [f"{LOCK}.12", ".notes.12"]


def test_names_in_a_manifest_reach_nothing_outside_the_folder() -> None:
    run("--out", "mine")
    Path("precious,seed=0").mkdir()
    manifest = json.loads(Path("mine/manifest.json").read_text())
    Path("mine/manifest.json").write_text(json.dumps(manifest | {"points": ["../../precious"], "seeds": [0]}))
    run("--out", "mine")
    assert Path("precious,seed=0").is_dir()


@pytest.mark.parametrize(
    "words", [["report", "results/x", "--out"], ["compare", "results/x", "results/x", "--html"]]
)
def test_a_page_takes_no_other_files_place(words: list[str]) -> None:
    run()
    refused_page = specfleet(*words, "x.yaml")
    assert refused_page.exit_code == 2 and "x.yaml: is not a page of Specfleet's" in refused_page.stderr
    assert Path("x.yaml").read_text() == FILE
    assert specfleet(*words, "a/b.html").exit_code == 0 and specfleet(*words, "a/b.html").exit_code == 0
    under_a_file = specfleet(*words, "x.yaml/b.html")
    assert under_a_file.exit_code == 2 and "x.yaml: is a file" in under_a_file.stderr


# Fault 4: two runs into one folder


def test_a_folder_somebody_is_at_work_in_is_refused() -> None:
    Path("mine").mkdir()
    lock = Lock(Path("mine"))
    refused(run("--out", "mine"), f"process {os.getpid()} on {socket.gethostname()} is at work here")
    lock.release()
    assert run("--out", "mine").exit_code == 0
    assert not list(Path("mine").glob(f"{LOCK}*"))


def test_the_lock_of_a_process_that_ended_holds_nobody_up() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    Path("mine").mkdir()
    mine = {"process": ended.pid, "host": socket.gethostname(), "started": "1"}
    for stale in (mine, mine | {"process": os.getpid()}):  # the number was given to another process
        Path("mine", LOCK).write_text(json.dumps(stale))
        assert holder(Path("mine")) is None
        Lock(Path("mine")).release()
    Path("mine", LOCK).write_text(json.dumps(mine | {"host": "elsewhere"}))
    refused(run("--out", "mine"), f"if it is not any more, remove mine/{LOCK}")


def test_of_many_that_want_a_folder_whose_last_process_was_killed_one_gets_it_at_a_time() -> None:
    Path(LOCK).write_text(json.dumps({"process": os.getpid(), "host": socket.gethostname(), "started": "1"}))

    def wants() -> int:
        """0 where nobody else was there while the folder was held, 1 where it was refused, 2 otherwise."""
        try:
            lock = Lock(Path())
            Path("held").open("x").close()
            time.sleep(0.05)
            Path("held").unlink()
            lock.release()
        except FolderFault:
            return 1
        except BaseException:
            return 2
        return 0

    processes = []
    for _ in range(12):
        processes.append(os.fork())
        if not processes[-1]:
            os._exit(wants())
    codes = {os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes}
    assert 0 in codes and codes <= {0, 1}
    assert sorted(path.name for path in Path().iterdir()) == ["x.yaml"]


def test_a_forgotten_lock_is_released() -> None:
    lock = Lock(Path())
    assert holder(Path()) == LockHolder.me()
    del lock
    assert holder(Path()) is None


# Fault 5: a resumed run of other inputs


def test_a_resumed_run_writes_the_same_bytes_as_one_at_a_stretch() -> None:
    run()
    before, manifest = content(Path("results/x/1")), manifest_of(Path("results/x/1"))
    cut_short(Path("results/x/1"))
    assert "results: results/x/1" in run("--resume").stdout
    assert content(Path("results/x/1")) == before
    assert manifest_of(Path("results/x/1")) == manifest


def test_a_run_is_not_resumed_with_other_settings_files_or_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("t.csv").write_text(TRACE.format(*[300, 20] * 10))
    trace = ["workload={trace: t.csv}", "sweep={}"]
    run(*trace)
    refused(run("--resume"), "was made with other settings")
    Path("t.csv").write_text(TRACE.format(*[300, 21] * 10))
    refused(run(*trace, "--resume"), "t.csv: is not what results/x/1 was made of")
    assert "is no longer what the run read" in specfleet("report", "results/x").stderr
    Path("t.csv").write_text(TRACE.format(*[300, 20] * 10))
    assert run(*trace, "--resume").exit_code == 0
    monkeypatch.setattr("specfleet.experiments.run.folder.__version__", "0.0")
    refused(run(*trace, "--resume"), "this is 0.0")


def test_an_input_that_changes_during_a_run_leaves_no_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from specfleet.experiments.run.run import Run

    Path("t.csv").write_text(TRACE.format(*[300, 20] * 10))
    execute = Run.execute

    def meanwhile(*arguments: object) -> None:
        execute(*arguments)  # type: ignore[arg-type]
        Path("t.csv").write_text(TRACE.format(*[300, 2] * 10))

    monkeypatch.setattr(Run, "execute", meanwhile)
    assert run("workload={trace: t.csv}", "sweep={}").exit_code == 1
    assert specfleet("report", "results/x").exit_code == 2


def test_a_plan_does_not_keep_simulations_of_another_trace() -> None:
    Path("t.csv").write_text(TRACE.format(*[300, 20] * 10))
    config = load_experiment("x.yaml", ["workload={trace: t.csv}", "sweep={}"])
    before = trial_key(Trial(config, 0))
    assert trial_key(Trial(config, 0)) == before
    Path("t.csv").write_text(TRACE.format(*[300, 21] * 10))
    assert trial_key(Trial(config, 0)) != before


def test_every_file_of_an_experiment_is_an_input_and_nothing_else(here: Path) -> None:
    Path("t.csv").write_text(TRACE.format(*[300, 20] * 10))
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    Path("x").write_text("a file with the experiment's name")
    found = load_experiment("x.yaml", ["workload={trace: t.csv}", "sweep={}"])
    assert list(input_files(found)) == [str(here / "t.csv")]
    serve = found.serve.model_copy(update={"model": "model"})
    both = input_files(found.model_copy(update={"serve": serve}))
    assert list(both) == [str(here / "model" / "config.json"), str(here / "t.csv")]
    Path("t.csv").unlink()
    assert changed_files(both) == [str(here / "t.csv")]


# Fault 8: runs of other requests


def test_runs_of_other_output_lengths_are_not_compared() -> None:
    run()
    run("workload.output_len=10")
    refused(specfleet("compare", "results/x/1", "results/x/2"), "has other lengths")
    run("workload.num_prompts=10")
    refused(specfleet("compare", "results/x/1", "results/x"), "requests that the other has not")


# Fault 9: a file system that does not play along


# Break-even and plans


def test_a_search_takes_the_next_number_and_only_its_own_folder() -> None:
    words = ("breakeven", "x.yaml", "sweep={}", "--tolerance", "0.2", "-q", "--no-plots", "--jobs", "1")
    assert "results: results/x-breakeven/1" in specfleet(*words).stdout
    before = Path("results/x-breakeven/1/breakeven.json").read_bytes()
    assert "results: results/x-breakeven/2" in specfleet(*words).stdout
    assert Path("results/x-breakeven/latest/breakeven.json").read_bytes() == before
    refused(run("--out", "results/x-breakeven/1"), "is a folder of `specfleet breakeven`")
    assert specfleet("report", "results/x-breakeven").exit_code == 0
    assert Path("results/x-breakeven/2/report.html").is_file()
    assert specfleet("results", "list").stdout.count("breakeven  ") == 2
