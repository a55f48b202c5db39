"""Every key of the schema is accepted and changes what it should; a key without a case fails."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from key_cases import CASES, ELSEWHERE
from key_files import overrides, with_key, written
from key_worlds import FIGURES, NEEDED, ONLY, REFUSED

from specfleet.experiments.load.config import load, load_experiment, resolved
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.run.check import check
from specfleet.experiments.run.explain import explain_file
from specfleet.experiments.run.runner import run_task, tasks
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.schema.structure import known_keys
from specfleet.experiments.schema.yamlfile import KeyPath
from specfleet.experiments.words.check import check_text
from specfleet.experiments.words.explain import explain_text

FLEETS = Path(__file__).parents[1] / "experiments" / "fleet"
IN_FLEETS = (
    "deployment.failures.",
    "deployment.gateway.",
    "deployment.kv_transfer.",
    "deployment.pools.",
    "deployment.router.",
    "deployment.slow.",
    "workload.patience.",
    "deployment.spot.",
)
"""Blocks of several replicas, and of clients: `tests/experiments/fleet` tries their keys."""
AGAIN = (
    "deployment.pools.acceptance.",
    "deployment.pools.autoscale.",
    "deployment.pools.spot.",
    "plan.candidates.drafting.speculative_config.",
    "plan.candidates.autoscale.",
    "plan.candidates.disaggregated.",
    *(f"plan.candidates.drafting.{block}." for block in ("acceptance", "draft_policy", "draft_tree")),
    *(f"workload.mix.{block}." for block in ("acceptance", "slo", "input", "output", "trace", "prefix")),
    "workload.mix.sessions.",
    "workload.mix.think_time_s.",
    "workload.mix.patience.",
)
"""Blocks that are tried where they stand first."""


def leaves(path: KeyPath = ()) -> Iterator[str]:
    """Every key of the schema that holds a value."""
    for key in known_keys(path):
        here = (*path, key)
        if known_keys(here):
            yield from leaves(here)
        else:
            yield ".".join(map(str, here))


def test_every_key_of_the_schema_has_a_case_and_every_case_a_key() -> None:
    asked = {key for key in leaves() if not key.startswith(AGAIN)}
    tried = "".join(file.read_text() for file in FLEETS.glob("*.py"))
    in_fleets = {key for key in asked if key.startswith(IN_FLEETS)}
    assert not [key for key in in_fleets if not re.search(rf"\b{key.rpartition('.')[2]}\b", tried)]
    asked -= in_fleets
    assert asked == CASES.keys() | set(ELSEWHERE)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The experiment, and the files that cases name."""
    return written(tmp_path)


class Before:
    """An experiment without a key, and what a run of it says."""

    def __init__(self, file: Path, around: list[str]) -> None:
        self.experiment = load_experiment(file, around)
        self.text = resolved(self.experiment).replace(str(file.parent), "")
        self._file = file

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Of the first point."""
        return figures(self._file, self.experiment)


BEFORE: dict[tuple[str, ...], Before] = {}


def without(file: Path, around: list[str]) -> Before:
    """What stands around a key, loaded once."""
    same = tuple(text.replace(str(file.parent), "") for text in around)
    if same not in BEFORE:
        BEFORE[same] = Before(file, around)
    return BEFORE[same]


def figures(file: Path, experiment: Experiment) -> dict[str, Any]:
    """What a run of the first point says."""
    points = expand(experiment)[:1]
    (task,) = tasks(points, 1, 0, file.parent / "out")
    run_task(task)
    found = {
        **json.loads((task.path / "bench.json").read_text()),
        **json.loads((task.path / "engine.json").read_text()),
    }
    found.pop("date", None)
    return found


@pytest.mark.parametrize("key", list(CASES))
def test_every_key_is_accepted_and_changes_what_it_should(file: Path, key: str) -> None:
    case = CASES[key]
    before, after = overrides(file, case.around), overrides(file, with_key(key, case))
    if case.seen == REFUSED:
        with pytest.raises(InputFaults, match=key):
            load(file, after)
        return
    experiment = load_experiment(file, after)
    text = resolved(experiment)
    again = file.with_name("again.yaml")
    again.write_text(text)
    assert resolved(load_experiment(again)) == text, "what is printed is read back"
    check_text(check(file, after))
    if key != "report.requests":
        assert explain_text(explain_file(file, after, 1, 200, None))
    if case.seen == NEEDED:
        with pytest.raises(InputFaults):
            load(file, before)
        figures(file, experiment)
        return
    if case.seen == ONLY:
        return
    plain = without(file, before)
    assert text.replace(str(file.parent), "") != plain.text, "seen in the resolved file"
    if case.seen == FIGURES:
        assert figures(file, experiment) != plain.figures
