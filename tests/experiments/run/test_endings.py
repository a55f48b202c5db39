"""How commands end that are asked to: whenever that is, with 130 and without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specfleet.experiments.cli.endings import ended_alike

ROOT = Path(__file__).parents[3]
HEARD = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""Ctrl-C is ignored by what a shell started in the background."""


@pytest.mark.parametrize(
    "when",
    [
        pytest.param("raise KeyboardInterrupt", id="while it is imported"),
        pytest.param("exec('raise KeyboardInterrupt')", id="while Python runs text"),
        pytest.param(
            "import atexit, os; atexit.register(os.kill, os.getpid(), signal.SIGINT); raise SystemExit(0)",
            id="while the process goes",
        ),
    ],
)
def test_an_interrupted_command_ends_with_130_and_not_by_the_signal(tmp_path: Path, when: str) -> None:
    (tmp_path / "typer.py").write_text(f"{HEARD}\n{when}\n")  # what the command imports first
    done = subprocess.run(
        [sys.executable, "-m", "specfleet"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_every_request_to_end_is_an_interrupt_unless_it_is_ignored(name: str) -> None:
    asked = getattr(signal, name)
    before = signal.getsignal(asked)
    with pytest.raises(KeyboardInterrupt), ended_alike():
        os.kill(os.getpid(), asked)
        time.sleep(1)
    assert signal.getsignal(asked) is before
    signal.signal(asked, signal.SIG_IGN)
    try:
        with ended_alike():
            os.kill(os.getpid(), asked)
    finally:
        signal.signal(asked, before)
