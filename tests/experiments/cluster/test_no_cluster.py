"""`--cluster` with nobody at the address, somebody else, no Dask or no worker: a word, and no folder."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from clusters import SMALL, command, hired, without_workers

from specfleet.experiments.run.cluster import connect
from specfleet.experiments.run.processes import WorkersGone

pytest.importorskip("distributed", reason="distributed is not installed: pip install -e '.[cluster]'")


@pytest.fixture
def small_cluster() -> Iterator[Any]:
    """A scheduler in this process, without workers; some can be added, a thread each."""
    with without_workers() as cluster:
        yield cluster


def _half(number: int) -> float:
    return number / 2


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("127.0.0.1:9",), 1, "127.0.0.1:9: no scheduler answers there within 0.5 s; start one with"),
        (("nowhere",), 2, "--cluster: 'nowhere' is no address of a scheduler (missing port number"),
        (("http://x:1",), 2, "is no address of a scheduler (unknown address scheme 'http'"),
        (("127.0.0.1:many",), 2, "is no address of a scheduler"),
        (("127.0.0.1:9", "--jobs", "2"), 2, "--jobs: counts processes of this machine; the workers of"),
    ],
)
def test_an_address_that_is_none_or_answers_nothing_is_said_in_seconds_and_leaves_no_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    options: Sequence[str],
    code: int,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(connect, "REACH_S", 0.5)
    (tmp_path / "x.yaml").write_text(SMALL)
    for study in ("run", "breakeven"):
        assert command(study, "x.yaml", "--cluster", *options) == code
        said = capfd.readouterr().err
        assert sentence in said and "Traceback" not in said
    assert not (tmp_path / "results").exists()


def test_somebody_else_who_answers_is_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(connect, "REACH_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            other, _ = server.accept()
            other.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20)
            other.close()

        threading.Thread(target=answer, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(WorkersGone, match=r"no scheduler answers|no Dask scheduler"):
            connect.reached(address)


def test_without_dask_it_is_said_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.yaml").write_text(SMALL)
    monkeypatch.setattr(connect, "find_spec", lambda name: None)
    assert command("run", tmp_path / "x.yaml", "--cluster", "local", "--out", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert "needs Dask, which is not installed; pip install 'specfleet[cluster]'" in said
    assert not (tmp_path / "out").exists()


def test_nobody_to_work_is_waited_for_with_a_word_and_not_for_ever(
    small_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "WAIT_S", 0.3)
    said: list[str] = []
    with pytest.raises(WorkersGone, match=r"no worker came within 0\.3 s"):
        hired(small_cluster, said).__enter__()
    assert len(said) == 1 and "has no workers yet; waiting" in said[0]
    monkeypatch.setattr(connect, "WAIT_S", 30.0)
    threading.Timer(0.2, small_cluster.scale, (1,)).start()
    with hired(small_cluster) as crew:
        assert list(crew.in_order(_half, [4])) == [2.0]
