"""Which test calls which function of the product, and how long it takes: recorded once, kept by content."""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import forked
from mutants import ROOT, Mutant
from swap import relative


class Seen(NamedTuple):
    """What one test did: whether it failed, CPU seconds, the (file, outermost function) that it called."""

    failed: bool
    seconds: float
    called: set[tuple[str, str]]


def seen(test: Callable[[], bool]) -> Seen:
    """Runs a test and returns what it called; a call is all that is traced, no lines."""
    met: set[CodeType] = set()

    def trace(frame: FrameType, event: str, arg: object) -> None:
        met.add(frame.f_code)

    begun = forked.cpu_s()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        failed = test()
    finally:
        sys.settrace(None)
        threading.settrace(None)
    calls = ((relative(code.co_filename), code.co_qualname.partition(".<locals>")[0]) for code in met)
    return Seen(failed, forked.cpu_s() - begun, {call for call in calls if call[0]})


class Map:
    """The record.

    Args:
        folder: where it is kept.
        examples: of hypothesis; another number is another record.
        slow_s: a slower test takes no part.
    """

    def __init__(self, folder: Path, examples: int, slow_s: float) -> None:
        folder.mkdir(exist_ok=True)
        self._path, self._slow_s = folder / f"calls-{examples}.json", slow_s
        self._results = folder / "results.pickle"
        self._digests: dict[str, str] = {}
        self._tests: dict[str, dict[str, object]] = {}
        if self._path.exists():
            self._tests = json.loads(self._path.read_text())
        self._by_function: dict[tuple[str, str], set[str]] | None = None
        self._by_file: dict[str, set[str]] = {}

    def _digest(self, test: str) -> str:
        file = test.partition("::")[0]
        if file not in self._digests:
            self._digests[file] = hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16]
        return self._digests[file]

    def knows(self, test: str) -> bool:
        """Whether a test is recorded as it stands."""
        return test in self._tests and self._tests[test]["digest"] == self._digest(test)

    def add(self, test: str, what: Seen | None) -> None:
        """Notes a test; one that failed, died or was slow is noted without calls."""
        row: dict[str, object] = {"digest": self._digest(test), "seconds": 0.0, "called": []}
        if what is not None and not what.failed and what.seconds <= self._slow_s:
            called = sorted(f"{file}:{function}" for file, function in what.called)
            row |= {"seconds": round(what.seconds, 3), "called": called}
        elif what is None or what.failed:
            print(f"  {'failed' if what else 'too slow'}: {test}", flush=True)
        self._tests[test] = row

    def write(self) -> None:
        """Keeps the record."""
        forked.replace(self._path, json.dumps(self._tests, sort_keys=True).encode())

    def tests(self, file: str, function: str) -> list[tuple[str, float]]:
        """Returns the tests that call a function, the fastest first, with their CPU seconds.

        For a line outside of any function: those that call one of the file, or of a file that imports it.
        """
        if self._by_function is None:
            self._index()
        assert self._by_function is not None
        names = self._by_function.get((file, function), set()) if function else self._by_file.get(file, set())
        if not function:
            module = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            users = [other for other in self._by_file if imports(other, module)]
            names = names.union(*(self._by_file[other] for other in users))
        pairs = [(name, float(str(self._tests[name]["seconds"]))) for name in names]
        return sorted(pairs, key=lambda pair: (pair[1], pair[0]))

    def _index(self) -> None:
        self._by_function = {}
        for test, row in self._tests.items():
            if not (ROOT / test.partition("::")[0]).exists():
                continue
            called = row["called"]
            assert isinstance(called, list)
            for place in called:
                file, _, function = place.partition(":")
                if not (ROOT / file).exists():
                    continue
                self._by_function.setdefault((file, function), set()).add(test)
                self._by_file.setdefault(file, set()).add(test)

    def results(self, ends: dict[Mutant, str]) -> None:
        """Leaves results for the process that waits."""
        forked.replace(self._results, pickle.dumps(ends))

    def take_results(self, asked: list[Mutant]) -> dict[Mutant, str]:
        """Returns what was left of these, and removes it."""
        if not self._results.exists():
            return {}
        ends: dict[Mutant, str] = pickle.loads(self._results.read_bytes())
        self._results.unlink()
        return {mutant: end for mutant, end in ends.items() if mutant in asked}


def imports(file: str, module: str) -> bool:
    """Whether a file imports a module, in the product's own words for it."""
    parent, _, name = module.rpartition(".")
    text = (ROOT / file).read_text()
    return f"from specfleet.{module} import" in text or (
        f"from specfleet.{parent} import" in text and name in text
    )
