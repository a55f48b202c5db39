"""`--cluster`: the bytes of `--jobs 1` on other machines, whoever dies, and a sentence for what cannot be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from clusters import OPTIONS, SMALL, command, content, hired, without_workers

from specfleet.experiments.run.cluster import connect, workers
from specfleet.experiments.run.cluster.alike import Likeness, likeness
from specfleet.experiments.run.processes import WorkerLost, WorkersGone
from specfleet.experiments.schema.faults import InputFaults

pytest.importorskip("distributed", reason="distributed is not installed: pip install -e '.[cluster]'")

ROOT = Path(__file__).parents[3]

PLUGIN = """
import os, signal
from pathlib import Path
import specfleet as sf

@sf.register.router("last")
class Last:
    def __init__(self, seed):
        marker = Path({marker!r})
        if Path.cwd() != Path({here!r}) and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    def pick(self, request_id, replicas):
        return len(replicas) - 1
"""
OWN_FILES = """
name: x
plugins: [mine.py]
serve:
  model: {hf_config: models/mine}
  gpu: h100-sxm
  engine: engine.yaml
  max_model_len: 2048
  speculative_config: {method: ngram, num_speculative_tokens: 3}
acceptance: {replay: accepted.jsonl}
deployment: {replicas: 2, router: last}
workload: {trace: trace.csv}
sweep: {axes: {serve.max_num_seqs: [4, 8, 16]}}
"""
GOES_ON = """
name: x
serve: {model: llama-3.1-8b-instruct, gpu: h100-sxm, max_model_len: 4096}
workload: {input_len: 100, output: {uniform: {low: 5, high: 30}}}
run: {at_most: 1000, precision: {mean: 0.001}}
sweep: {axes: {workload.max_concurrency: [4, 8]}}
"""
PLAN = """
name: x
serve: {model: llama-3.1-8b-instruct, gpu: h100-sxm, max_model_len: 4096}
workload: {input_len: 100, output_len: 20, request_rate: 5, num_prompts: 12}
slo: {p99_tpot_ms: 50, p99_ttft_ms: 2000}
plan: {candidates: {gpu: [h100-sxm], tensor_parallel_size: [1]}}
"""


@pytest.fixture(scope="session")
def two_workers() -> Iterator[Any]:
    """A scheduler on loopback with two workers, each a process that a nanny starts again when it dies."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, processes=True, **OPTIONS) as cluster:
        yield cluster


@pytest.fixture
def small_cluster() -> Iterator[Any]:
    """A scheduler in this process, without workers; some can be added, a thread each."""
    with without_workers() as cluster:
        yield cluster


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment that names a file of every kind, in the working folder, which workers do not have."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(OWN_FILES)
    (tmp_path / "mine.py").write_text(PLUGIN.format(marker=str(tmp_path / "died"), here=str(tmp_path)))
    (tmp_path / "engine.yaml").write_text("base: vllm-0.33\nhost_sync_s: 0.9e-3\n")
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "models" / "mine" / "config.json").write_text(
        '{"architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "intermediate_size": 3072,'
        '"head_dim": 128,'
        '"model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,'
        '"tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 151936,'
        '"max_position_embeddings": 40960}'
    )
    rows = "".join(f"{0.05 * i},{100 + 7 * i},{5 + i % 9}\n" for i in range(30))
    (tmp_path / "trace.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    (tmp_path / "accepted.jsonl").write_text("".join(f"[{i % 4},2,0,3,1,1,2,0]\n" for i in range(7)))
    return tmp_path


def test_files_are_brought_a_killed_worker_loses_nothing_and_the_bytes_are_those_of_one_job(
    files: Path, two_workers: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ("--no-plots", "--cluster", two_workers.scheduler_address, "--out", "there")
    assert command("run", "x.yaml", *options) == 0
    assert (files / "died").exists(), "the worker that was first took itself down"
    assert "Traceback" not in capfd.readouterr().err
    assert command("run", "x.yaml", "-q", "--no-plots", "--jobs", 1, "--out", "here") == 0
    assert content(files / "there") == content(files / "here")


def _where(path: str) -> tuple[tuple[str, ...], bytes, str, str]:
    """The parts of the path that a worker is given, what it reads there, and the path in two texts."""
    return Path(path).parts, Path(path).read_bytes(), path, f"{path}:3: is wrong"


def _refuses(path: str) -> None:
    raise InputFaults([connect.fault(f"{path} is wrong").faults[0]])


def test_a_worker_reads_a_copy_and_the_user_sees_the_path_that_was_given(
    files: Path, two_workers: Any
) -> None:
    given = str(files / "trace.csv")
    with hired(two_workers) as crew:
        ((parts, read, alone, among),) = crew.in_order(_where, [given])
        assert Path(*parts) != Path(given) and parts[-2:] == Path(given).parts[-2:]
        assert read == (files / "trace.csv").read_bytes()
        assert (alone, among) == (given, f"{given}:3: is wrong")
        ((_, error),) = crew.as_finished(_refuses, [given])
    assert isinstance(error, Exception) and f"{given} is wrong" in str(error)


def test_a_file_that_changes_between_two_commands_is_brought_anew(files: Path, two_workers: Any) -> None:
    for text in ("a", "b"):
        (files / "trace.csv").write_text(text)
        with hired(two_workers) as crew:
            ((_, read, *_),) = crew.in_order(_where, [str(files / "trace.csv")])
        assert read == text.encode()


def test_points_that_go_on_until_they_are_settled_grow_alike_and_are_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_workers: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(GOES_ON)
    options = ("-q", "--no-plots", "--cluster", two_workers.scheduler_address, "--out", "there")
    assert command("run", "x.yaml", *options) == 0
    assert command("run", "x.yaml", "-q", "--no-plots", "--jobs", 1, "--out", "here") == 0
    assert content(tmp_path / "there") == content(tmp_path / "here")
    assert command("run", "x.yaml", *options, "--resume") == 0
    assert content(tmp_path / "there") == content(tmp_path / "here")


@pytest.mark.parametrize(
    ("study", "text", "answers"),
    [
        ("plan", PLAN, ("plan.json",)),
        ("breakeven", SMALL, ("breakeven.json", "breakeven.csv")),
    ],
)
def test_a_study_says_what_it_says_with_one_job(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    two_workers: Any,
    study: str,
    text: str,
    answers: Sequence[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(text)
    tolerance = ("--tolerance", "0.2") if study == "breakeven" else ()
    there = ("--cluster", two_workers.scheduler_address, "--out", "there")
    ended = [
        command(study, "x.yaml", "-q", "--no-plots", *tolerance, *options)
        for options in (there, ("--jobs", 1, "--out", "here"))
    ]
    assert ended[0] == ended[1] < 2
    for name in answers:
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_measured_points_are_scored_as_with_one_job(
    tmp_path: Path, two_workers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from specfleet.experiments.validate.validation import PUBLISHED

    header, *rows = PUBLISHED.read_text().splitlines()
    (tmp_path / "some.csv").write_text("\n".join([header, *rows[:3]]) + "\n")
    said = []
    for options in (("--cluster", two_workers.scheduler_address), ("--jobs", 1)):
        command("validate", tmp_path / "some.csv", "--seeds", 1, "--json", "-q", *options)
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and '"rows_scored": 3' in said[0]


def _inverse(number: int) -> float:
    return 1 / number


def _dies(number: int) -> int:
    if not number:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_work_is_done_in_order_a_failure_is_a_value_and_what_is_worked_on_is_told(
    two_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LOOK_EVERY_S", 0.0)
    told: list[Sequence[int]] = []
    with hired(two_workers) as crew:
        assert list(crew.in_order(_inverse, [1, 2, 4])) == [1.0, 0.5, 0.25]
        found = dict(crew.as_finished(_inverse, [1, 0, *range(1, 40)], told.append))
        with pytest.raises(ZeroDivisionError):
            list(crew.in_order(_inverse, [1, 0, 2]))
    assert sorted(found) == list(range(41)) and isinstance(found.pop(1), ZeroDivisionError)
    assert all(isinstance(one, float) for one in found.values())
    assert any(told) and all(set(at) <= set(range(41)) and len(at) <= 2 for at in told)


def test_what_takes_down_every_worker_that_tries_it_fails_and_the_others_are_done(
    two_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_workers.scheduler, "allowed_failures", 0)
    with hired(two_workers) as crew:
        found = dict(crew.as_finished(_dies, [0, 1, 2]))
    lost = found.pop(0)
    assert isinstance(lost, WorkerLost) and "1 workers in turn died over it" in str(lost)
    assert found == {1: 1, 2: 2}


@dataclass
class _Full:
    """Work that a full disk keeps from being done until it was tried so often."""

    tries: Path

    def __call__(self, enough: int) -> int:
        so_far = len(self.tries.read_text()) + 1 if self.tries.exists() else 1
        self.tries.write_text("." * so_far)
        if so_far < enough:
            raise OSError(28, "No space left on device", "/scratch")
        return so_far


def test_what_a_full_disk_kept_from_being_done_is_tried_again_and_not_for_ever(
    tmp_path: Path, two_workers: Any
) -> None:
    with hired(two_workers) as crew:
        assert list(crew.in_order(_Full(tmp_path / "tries"), [3])) == [3]
        ((_, error),) = crew.as_finished(_Full(tmp_path / "more"), [4])
    assert isinstance(error, OSError) and error.filename == "/scratch"


def test_a_worker_with_other_versions_is_refused_with_the_difference(
    two_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = likeness()
    other = replace(mine, versions={**mine.versions, "numpy": "1.0", "its files": "0123"})
    monkeypatch.setattr(connect, "likeness", lambda: other)
    with pytest.raises(InputFaults, match=r"--cluster: worker tcp\S+ has .*numpy .*, here 1\.0; .*install"):
        hired(two_workers).__enter__()
    said = iter([{"numpy": "2.0"}, {"numpy": "1.0"}])
    monkeypatch.setattr(connect, "_packages", lambda found: next(said))
    with pytest.raises(InputFaults, match=r"worker tcp\S+ has numpy 1\.0, here 2\.0; install the same there"):
        hired(two_workers).__enter__()


def test_a_worker_that_comes_later_with_other_versions_does_nothing(
    two_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = hired(two_workers)
    with crew:
        crew._order = replace(crew._order, expected=Likeness({"Python": "9.9"}, ()))
        with pytest.raises(WorkersGone, match=r"worker tcp\S+ has Python 3\.\S+, here 9\.9"):
            list(crew.as_finished(_inverse, [1]))


def test_another_processor_is_a_note(two_workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "likeness", lambda: replace(likeness(), simd=("abacus",)))
    said: list[str] = []
    with hired(two_workers, said):
        assert any("other instructions" in one and "last digits" in one for one in said)


def _after(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@pytest.mark.parametrize("end", ["scheduler", "workers"])
def test_a_cluster_that_goes_away_is_a_sentence_and_what_was_finished_is_there(
    small_cluster: Any, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(workers, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(connect, "WAIT_S", 0.5)
    small_cluster.scale(1)
    ends: Callable[[], object] = small_cluster.close if end == "scheduler" else lambda: small_cluster.scale(0)
    found: dict[int, float | Exception] = {}
    said: list[str] = []
    with hired(small_cluster, said) as crew, pytest.raises(WorkersGone) as gone:
        for at, one in crew.as_finished(_after, [0.0, *[0.3] * 30]):
            found[at] = one
            if len(found) == 1:
                ends()
    assert found[0] == 0.0 and len(found) < 31
    asked = "scheduler" if end == "scheduler" else "no worker came within"
    assert asked in str(gone.value)


def test_a_run_whose_scheduler_goes_away_keeps_what_is_whole_and_is_gone_on_with(
    tmp_path: Path,
    small_cluster: Any,
    two_workers: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers, "AHEAD", 1)
    (tmp_path / "x.yaml").write_text(SMALL + "sweep: {axes: {serve.max_num_seqs: [16, 32, 64]}}\n")
    small_cluster.scale(1)
    placed = workers._placed

    def once(*given: Any) -> Any:
        done = placed(*given)
        small_cluster.close()
        return done

    monkeypatch.setattr(workers, "_placed", once)
    options = ("run", "x.yaml", "--no-plots", "--out", "there")
    assert command(*options, "--cluster", small_cluster.scheduler_address) == 1
    said = capfd.readouterr().err
    assert "1 of 3 simulations are whole; go on with --resume" in said and "Traceback" not in said
    monkeypatch.setattr(workers, "_placed", placed)
    assert command(*options, "-q", "--resume", "--cluster", two_workers.scheduler_address) == 0
    assert command("run", "x.yaml", "-q", "--no-plots", "--jobs", 1, "--out", "here") == 0
    assert content(tmp_path / "there") == content(tmp_path / "here")


@pytest.mark.long
def test_what_ends_a_command_ends_a_local_cluster_with_it(tmp_path: Path) -> None:
    axes = "sweep: {axes: {workload.num_prompts: [20, 21, 3000000]}}\n"
    (tmp_path / "x.yaml").write_text(SMALL.replace(", num_prompts: 40", "") + axes)
    words = ("run", "x.yaml", "--cluster", "local", "--jobs", "2", "--no-plots", "-q", "--out", "out")
    running = subprocess.Popen(
        [sys.executable, "-m", "specfleet", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while running.poll() is None and len(list(tmp_path.glob("out/points/num*/_SUCCESS"))) < 2:
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=60)  # ends when no worker holds the pipes any more
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 130
    assert "interrupted: 2 of 3 simulations are whole; go on with --resume" in said
    assert "Traceback" not in said
