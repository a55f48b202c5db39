"""A folder that is damaged, in the way or on a full disk is named in one sentence; no run is made of it."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_folders import in_an_empty_folder, refused, run, specfleet

from specfleet.experiments.run.files import write_whole


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with the experiment x.yaml."""
    return in_an_empty_folder(tmp_path, monkeypatch)


def test_a_file_in_the_folders_place_is_named() -> None:
    Path("results").write_text("mine")
    refused(run(), "results: is a file where a results folder has to be")
    refused(specfleet("breakeven", "x.yaml", "sweep={}", "-q"), "results: is a file")
    refused(run("--out", "x.yaml"), "x.yaml: is a file")


def test_a_finders_file_among_the_points_does_no_harm() -> None:
    run("--out", "mine")
    Path("mine/points/.DS_Store").write_bytes(b"\0")
    assert run("--out", "mine", "--resume").exit_code == 0
    assert run("--out", "mine").exit_code == 0
    assert specfleet("report", "mine").exit_code == 0


@pytest.fixture
def small_files() -> Iterator[None]:
    """Lets no file be larger than 3,200 bytes, as a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3200, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_named_and_leaves_no_run(small_files: None) -> None:
    done = run("--out", "mine", "workload.num_prompts=100")
    assert done.exit_code == 1 and "2 of 2 simulations failed: OSError" in done.stderr
    assert "File too large: 'mine/points/" in done.stderr
    refused(specfleet("report", "mine"), "is not whole: 0 of 2 simulations are there")


def test_a_disk_that_fills_up_leaves_the_old_content_or_the_new(small_files: None) -> None:
    path = Path("f")
    path.write_text("old")
    with pytest.raises(OSError, match="f'"):
        write_whole(path, lambda beside: beside.write_text("x" * 4000))
    assert path.read_text() == "old" and sorted(path.name for path in Path().iterdir()) == ["f", "x.yaml"]


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"\xff\xfe", b"null"])
@pytest.mark.parametrize("name", ["manifest.json", "points/max_num_seqs=16,seed=0/engine.json"])
def test_damaged_json_is_one_sentence_with_the_file(name: str, damage: bytes) -> None:
    run()
    Path("results/x/1", name).write_bytes(damage)
    for done in (specfleet("report", "results/x"), run("--resume")):
        assert done.exit_code == 2 and f"results/x/1/{name}: is damaged" in done.stderr, done.output


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\n\xff", b'a,b\n1,2,3\n"'])
def test_damaged_requests_are_one_sentence_with_the_file(damage: bytes) -> None:
    run()
    name = "results/x/1/points/max_num_seqs=16,seed=0/requests.csv"
    Path(name).write_bytes(damage)
    done = specfleet("compare", "results/x", "results/x")
    assert done.exit_code == 2 and f"{name}: is damaged" in done.stderr, done.output
