"""A real file system of four megabytes, filled up: one sentence, exit 1, nothing half taken for whole."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from specfleet.experiments.cli.main import app

RUN = """
name: x
serve: {model: llama-3.1-8b-instruct, gpu: h100-sxm, max_model_len: 4096, num_gpu_blocks_override: 20000}
workload: {input_len: 300, output_len: 20, max_concurrency: 8, num_prompts: 20}
sweep: {axes: {serve.max_num_seqs: [16, 64]}}
"""
PLAN = """
name: x
serve: {model: llama-3.1-8b-instruct, gpu: h100-sxm, max_model_len: 4096}
workload: {input_len: 300, output_len: 20, request_rate: 5, num_prompts: 60}
slo: {p99_tpot_ms: 50, p99_ttft_ms: 2000}
plan: {candidates: {gpu: [h100-sxm], tensor_parallel_size: [1]}}
"""
MIB = 1 << 20
Filled = Callable[[int], None]


def specfleet(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def mount(kind: str, at: Path, image: Path) -> list[Sequence[str]]:
    """Commands that make a file system of 4 MiB and mount it."""
    if kind == "tmpfs":
        return [("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(at))]
    image.write_bytes(bytes(4 * MIB))
    return [
        ("mkfs.ext4", "-q", "-b", "1024", "-m", "0", str(image)),
        ("mount", "-o", "loop", str(image), str(at)),
    ]


@pytest.fixture
def filled(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Filled]:
    """A file system at `disk`; called, it is left with so many bytes, and with all that there are for -1."""
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(RUN)
    Path("plan.yaml").write_text(PLAN)
    disk, image = tmp_path / "disk", tmp_path / "image"
    disk.mkdir()
    for command in mount(request.param, disk, image):
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            pytest.skip(f"no {request.param} can be mounted here: {error}")
        if done.returncode:
            pytest.skip(f"no {request.param} can be mounted here: {done.stderr.strip()}")

    def fill(left: int) -> None:
        (disk / "ballast").unlink(missing_ok=True)
        subprocess.run(("sync", "-f", str(disk)), check=True)  # ext4 gives room back when it is written down
        if left >= 0:
            room = os.statvfs(disk)
            (disk / "ballast").write_bytes(bytes(max(room.f_bavail * room.f_frsize - left, 0)))

    yield fill
    subprocess.run(("umount", str(disk)), check=True)


def full(done: Result, path: str = "disk/") -> None:
    """It ended with exit 1 and a sentence that names what is full, not with a traceback."""
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SystemExit) and "Traceback" not in done.output
    assert "No space left on device" in done.stderr and path in done.stderr


def content(folder: str) -> dict[str, bytes]:
    patterns = ("summary.csv", "resolved.yaml", "experiment.yaml", "points/*/*", "plan.json", "breakeven.*")
    found = (path for pattern in patterns for path in Path(folder).glob(pattern))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize("filled", ["tmpfs", "ext4"], indirect=True)
def test_a_run_on_a_disk_that_is_full_is_whole_to_nobody_and_goes_on_once_there_is_room(
    filled: Filled,
) -> None:
    command = ("run", "run.yaml", "-q", "--no-plots", "--jobs", "1", "--out")
    assert specfleet(*command, "there").exit_code == 0
    for number, left in enumerate((0, 8192, 16_384, 24_576)):
        filled(left)
        done = specfleet(*command, f"disk/{number}")
        full(done)
        report = specfleet("report", f"disk/{number}")
        assert report.exit_code == 2 and "at work" not in report.stderr, report.output
        filled(-1)
        again = specfleet(*command, f"disk/{number}", "--resume")
        assert again.exit_code == 0 and content(f"disk/{number}") == content("there"), again.output


@pytest.mark.parametrize("filled", ["tmpfs"], indirect=True)
@pytest.mark.parametrize(
    ("words", "left"),
    [
        (("plan", "plan.yaml", "--jobs", "1", "--no-plots"), 16_384),
        (("breakeven", "run.yaml", "serve.speculative_config={method: ngram, num_speculative_tokens: 2}",
          "acceptance={by_position: [0.7, 0.5]}", "sweep={}", "--tolerance", "0.2", "--no-plots"), 16_384),
    ],
    ids=["plan", "breakeven"],
)  # fmt: skip
def test_so_is_a_plan_and_a_search(filled: Filled, words: Sequence[str], left: int) -> None:
    assert specfleet(*words, "-q", "--out", "there").exit_code in (0, 1)
    filled(left)
    full(specfleet(*words, "-q", "--out", "disk/x"))
    filled(-1)
    specfleet(*words, "-q", "--out", "disk/x")
    assert content("disk/x") and content("disk/x") == content("there")


@pytest.mark.parametrize("filled", ["tmpfs"], indirect=True)
def test_a_page_and_figures_for_which_there_is_no_room_take_nothing_from_the_run(filled: Filled) -> None:
    command = ("run", "run.yaml", "-q", "--jobs", "1", "--out", "disk/x")
    assert specfleet(*command, "--no-plots").exit_code == 0
    before = content("disk/x")
    filled(8192)
    full(specfleet("report", "disk/x"), "disk/x/report.html")
    full(specfleet("plot", "disk/x"), "disk/x/plots/")
    assert content("disk/x") == before
    filled(-1)
    assert specfleet("report", "disk/x").exit_code == 0


@pytest.mark.parametrize("filled", ["tmpfs"], indirect=True)
def test_whoever_simulates_in_python_can_go_on_after_a_full_disk(filled: Filled) -> None:
    """The failure, kept, must not keep the folder."""
    command = ("run", "run.yaml", "-q", "--no-plots", "--jobs", "1", "--out", "disk/x")
    filled(8192)
    kept = specfleet(*command)
    full(kept)
    filled(-1)
    assert specfleet(*command, "--resume").exit_code == 0 and kept.exception is not None
