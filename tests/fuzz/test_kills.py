"""A handful of kills at fixed moments; `python tests/fuzz/kills.py 200` tries more, at random ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KINDS = "fresh,next number,in place,resumed,report"


@pytest.mark.long
def test_whatever_is_killed_is_not_taken_for_whole_and_is_gone_on_with_to_the_same_bytes() -> None:
    command = [sys.executable, "tests/fuzz/kills.py", "10", "--seed", "2", "--writes", "--kinds", KINDS]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("10 kills, 0 faults\n")
