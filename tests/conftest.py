"""What all tests share: the folder of measurements, and a word about its absence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT / os.environ.get("SPECFLEET_SHARED", "../shared")
ABSENT = f"no shared measurements at {SHARED} (set SPECFLEET_SHARED)"


@pytest.fixture
def shared() -> Path:
    """The folder of measurements and recorded traces; skips the test where there is none."""
    if not SHARED.is_dir():
        pytest.skip(ABSENT)
    return SHARED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says at the end how many tests did not run for lack of the folder."""
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(ABSENT in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_line(f"{count} tests skipped: {ABSENT}", yellow=True)
