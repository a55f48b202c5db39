"""What all tests share: the folder of measurements, and a word about its absence."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from dealing import dealt, processors_of

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT / os.environ.get("SPECFLEET_SHARED", "../shared")
ABSENT = f"no shared measurements at {SHARED} (set SPECFLEET_SHARED)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """How many random worlds are drawn."""
    parser.addoption(
        "--worlds",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="draw so many times the random worlds that tests name (default: %(default)s)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Each of several workers keeps to processors of its own: what it starts shares them, and starts no more
    workers than that."""
    given: dict[str, Any] = getattr(config, "workerinput", {})
    if given and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(
            0, processors_of(given["workerid"], given["workercount"], os.sched_getaffinity(0))
        )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end: the collector of garbage need not look at it, now or
    while tests run (a fifth of the CPU time of collecting)."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Scales the examples of every test of hypothesis; five are always drawn, or what it names. Of several
    workers each begins with long tests."""
    items[:] = dealt(items, getattr(config, "workerinput", {}).get("workercount", 1))
    factor = config.getoption("--worlds")
    tests: dict[int, Any] = {}
    for item in items:
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        if hypothesis.is_hypothesis_test(test):
            tests[id(test)] = test
    for test in tests.values():
        named = getattr(test, "_hypothesis_internal_use_settings", None) or hypothesis.settings()
        worlds = max(round(factor * named.max_examples), min(5, named.max_examples))
        test._hypothesis_internal_use_settings = hypothesis.settings(named, max_examples=worlds)


@pytest.fixture
def shared() -> Path:
    """The folder of measurements and recorded traces; skips the test where there is none."""
    if not SHARED.is_dir():
        pytest.skip(ABSENT)
    return SHARED


@pytest.fixture(autouse=True)
def _no_width_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are as wide as they need, whatever terminal or other test there was before."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def _nothing_stays_registered() -> Iterator[None]:
    """What a test registers of its own is forgotten after it."""
    yield
    registry = sys.modules.get("specfleet.experiments.schema.registry")
    plugins = sys.modules.get("specfleet.experiments.point.plugins")
    if registry:
        for kind, name in list(registry.OWN):
            registry.forget(kind, name)
    if plugins:
        plugins._loaded.clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says at the end how many tests did not run for lack of the folder."""
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(ABSENT in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_line(f"{count} tests skipped: {ABSENT}", yellow=True)
    worlds = terminalreporter.config.getoption("--worlds")
    if worlds != 1:
        terminalreporter.write_line(f"random worlds: {worlds:g} times as many as tests name", yellow=True)
