"""The tool that plants faults: what it changes, that it samples alike, and how a mutant's end is told."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import forked
import mutants
import pytest
from calls import Map, Seen, imports, seen
from mutants import ROOT, mutants_of, mutated, sample
from mutate import likeliest, planted_elsewhere
from swap import Functions

from specfleet.sim.rules import blocks_for
from specfleet.sim.sglang import rules as sglang

SOURCE = '''"""A module."""

LIMIT: int = 3


class Thing:
    low: float = 0.0

    def fits(self, slots: int, longest: int) -> bool:
        """Whether it does."""
        if longest > LIMIT and not slots:
            print("no")
        return 2 * slots >= max(longest, -1)
'''


def test_each_mutant_differs_from_the_source_in_one_place_and_parses() -> None:
    found = mutants_of(SOURCE, "thing.py")
    texts = [ast.unparse(mutated(SOURCE, mutant.number)) for mutant in found]
    assert len(set(texts)) == len(texts)
    assert ast.unparse(ast.parse(SOURCE)) not in texts
    for text, mutant in zip(texts, found, strict=True):
        compile(text, "thing.py", "exec")
        lines = zip(text.splitlines(), ast.unparse(ast.parse(SOURCE)).splitlines(), strict=True)
        assert sum(new != old for new, old in lines) == 1, mutant


def test_the_faults_named_in_the_issue_are_among_the_mutants() -> None:
    found = {(mutant.function, mutant.what) for mutant in mutants_of(SOURCE, "thing.py")}
    inside = {what for function, what in found if function == "Thing.fits"}
    assert {"longest > LIMIT -> longest >= LIMIT", "2 * slots -> slots"} <= inside
    assert {"not slots -> slots", "print('no') -> pass", "-1 -> 1", "2 -> 3"} <= inside
    assert "max(longest, -1) -> min(longest, -1)" in inside
    assert {what for function, what in found if not function} == {"3 -> 4", "0.0 -> 1.0"}


def test_what_only_types_read_is_left_alone() -> None:
    source = (
        "if TYPE_CHECKING:\n    x = 1 + 2\ndef f(a: 3 | 4 = 5) -> 6 + 7:\n    assert a > 8\n    return a\n"
    )
    assert [mutant.what for mutant in mutants_of(source, "x.py")] == ["5 -> 6"]


def test_a_sample_is_the_same_for_the_same_seed_and_spread_over_the_folders() -> None:
    assert sample(40, 3, "workloads/") == sample(40, 3, "workloads/")
    assert sample(40, 3, "workloads/") != sample(40, 4, "workloads/")
    assert {mutant.file.partition("/")[0] for mutant in sample(400, 0)} == {
        *("sim", "hardware", "workloads", "experiments")
    }
    assert {mutant.file for mutant in sample(9, 0, "sim/rules.py")} == {"sim/rules.py"}


def test_living_functions_get_the_mutants_code_in_the_process_that_tries_it_alone() -> None:
    file = "sim/rules.py"
    source = (mutants.ROOT / file).read_text()
    right = blocks_for(33, 16)
    own = [mutant for mutant in mutants_of(source, file) if mutant.function == "blocks_for"]
    assert own

    def notices(number: int) -> bool:
        return Functions().exchange(file, mutated(source, number)) and blocks_for(33, 16) != right

    assert any(forked.ends(partial(notices, mutant.number), 60.0) != "survived" for mutant in own)
    assert blocks_for(33, 16) == right


def test_a_mutant_ends_as_its_tests_do() -> None:
    def stops() -> bool:
        forked.begin("tests/x.py::endless", 0.0)
        while True:
            pass

    def fails() -> bool:
        forked.begin("tests/x.py::one", 60.0)
        forked.begin("tests/x.py::two", 60.0)
        return True

    def waits() -> bool:
        forked.begin("tests/x.py::waiting", 60.0, 0.1)
        signal.pause()
        return False

    def leaves_one_behind() -> bool:
        if not os.fork():
            signal.pause()
        return True

    assert forked.ends(waits, 60.0) == "killed (hangs) by tests/x.py::waiting"
    assert forked.ends(leaves_one_behind, 60.0).startswith("killed by")
    assert forked.ends(lambda: False, 60.0) == "survived"
    assert forked.ends(fails, 60.0) == "killed by tests/x.py::two"
    assert forked.ends(stops, 60.0) == "killed (too long or too large) by tests/x.py::endless"
    assert forked.ends(signal.pause, 0.2).startswith("killed (too long")  # type: ignore[arg-type]
    assert forked.ends(lambda: bool(1 / 0), 60.0).startswith("killed")


def test_a_test_is_known_by_the_functions_it_calls() -> None:
    what = forked.told(lambda: seen(lambda: sglang.reserve_per_decode(1, 3, 1, 4) != 8), 60.0)
    assert not what.failed
    assert ("sim/sglang/rules.py", "reserve_per_decode") in what.called
    assert ("sim/sglang/rules.py", "SglangRules.of") not in what.called


def test_the_map_gives_the_fastest_test_first_and_forgets_a_test_that_changed(tmp_path: Path) -> None:
    here, call = "tests/mutation/test_mutate.py", ("sim/rules.py", "blocks_for")
    record = Map(tmp_path / "map", 20, 8.0)
    record.add(f"{here}::slow", Seen(False, 2.0, {call}))
    record.add(f"{here}::quick", Seen(False, 0.1, {call}))
    record.add(f"{here}::red", Seen(True, 0.1, {call}))
    record.add(f"{here}::endless", None)
    record.add(f"{here}::moved", Seen(False, 0.1, {("sim/gone.py", "old")}))
    record.write()
    again = Map(tmp_path / "map", 20, 8.0)
    assert [name for name, _ in again.tests(*call)] == [f"{here}::quick", f"{here}::slow"]
    assert again.tests("sim/rules.py", "") == again.tests(*call)
    assert again.tests("sim/gone.py", "old") == again.tests("sim/gone.py", "") == []
    assert again.knows(f"{here}::red") and not again.knows(f"{here}::new")
    kept = next((tmp_path / "map").glob("*.json"))
    kept.write_text(kept.read_text().replace('"digest": "', '"digest": "x'))
    assert not Map(tmp_path / "map", 20, 8.0).knows(f"{here}::quick")


def test_who_noticed_before_and_the_fastest_of_each_file_come_first() -> None:
    tests = [("a::1", 0.1), ("a::2", 0.1), ("a::3", 0.1), ("b::1", 0.15), ("b::2", 1.0)]
    assert [name for name, _ in likeliest(tests, "x.py", {})] == ["a::1", "b::1", "a::2", "a::3", "b::2"]
    noticed = {("x.py", "b::2"): 20, ("y.py", "a::3"): 20}
    assert [name for name, _ in likeliest(tests, "x.py", noticed)][:2] == ["b::2", "a::1"]


def test_constants_alone_are_tried_by_the_tests_of_who_imports_them() -> None:
    assert imports("sim/sglang/adder.py", "sim.sglang.rules")
    assert not imports("sim/sglang/rules.py", "sim.sglang.adder")


def test_processes_that_a_test_starts_have_the_mutant_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of the sound product beside a mutant would differ from it, which is no test's doing."""
    file = "sim/speculation/luck.py"
    text = (ROOT / file).read_text()
    line = 1 + next(at for at, said in enumerate(text.splitlines()) if said.startswith("_MASK = (1 << 64)"))
    every = mutants_of(text, file)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("SPECFLEET_MUTANT", "")
    words = [sys.executable, "-c", "from specfleet.sim.speculation.luck import _MASK; print(_MASK >> 63)"]
    assert subprocess.check_output(words, text=True) == "1\n"
    planted_elsewhere(next(mutant for mutant in every if mutant.what == "1 -> 2" and mutant.line == line))
    assert subprocess.check_output(words, text=True) == "3\n"


def test_a_file_has_no_mutant_beyond_its_last() -> None:
    with pytest.raises(IndexError):
        mutated(SOURCE, len(mutants_of(SOURCE, "thing.py")))
