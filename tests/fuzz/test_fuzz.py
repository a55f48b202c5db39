"""Wrong files by the hundred end in a sentence; `make fuzz MINUTES=60` tries as many as time allows."""

from __future__ import annotations

import math
import random
from pathlib import Path

import fuzz
import mutations
import pytest
from readers import readers


def test_every_preset_is_accepted_before_it_is_changed(tmp_path: Path) -> None:
    kind = fuzz.Experiments(tmp_path)
    for data in mutations.presets():
        assert kind.checked(mutations.written(data), []) == 0, data["name"]


KINDS = (
    *("trace", "replay", "replay cells", "config.json", "constants", "engine", "log", "scrape", "requests"),
    *("bench", "table"),
    *("trace mooncake", "trace burstgpt", "trace vllm-bench", "trace columns"),
)


@pytest.mark.parametrize("name", KINDS)
def test_every_file_is_read_before_it_is_changed(tmp_path: Path, name: str) -> None:
    found = readers(tmp_path)
    assert sorted(found) == sorted(KINDS)
    reader = found[name]
    path = tmp_path / f"sound{reader.suffix}"
    path.write_bytes(reader.sound)
    reader.read(path)


@pytest.mark.parametrize(("kind", "n"), [(fuzz.Experiments, 60), (fuzz.Files, 400)])
def test_no_mutated_input_ends_in_a_traceback(tmp_path: Path, kind: type, n: int) -> None:
    outcomes, failures = fuzz.fuzz(kind(tmp_path), 2026, range(n), math.inf, None)
    told = [text for text in failures if "BAD slow" not in text]
    assert not told, told[0]
    assert len(outcomes) > 1


def test_the_same_seed_makes_the_same_input(tmp_path: Path) -> None:
    kind = fuzz.Experiments(tmp_path)
    made = [kind.made(random.Random("7 x 3")) for _ in range(2)]
    assert made[0] == made[1]


def test_an_exception_of_the_product_is_a_failure_of_the_harness() -> None:
    def fails() -> str:
        raise ZeroDivisionError

    outcome, said = fuzz.guarded(fails)
    assert outcome == "BAD ZeroDivisionError" and "Traceback" in said
    assert fuzz.guarded(lambda: "fine") == ("fine", "")
