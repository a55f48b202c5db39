"""Every claim has a preset that loads, states its source, and is named as its file."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from claim_runs import PRESETS

from specfleet.experiments.load.config import load, load_experiment
from specfleet.experiments.schema.blocks.expect import WITHIN, Expectation
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.words.claims import Verdict

FILES = sorted(PRESETS.glob("*.yaml"))


def test_all_seventeen_claims_have_a_preset() -> None:
    assert {int(path.stem.split("-")[1]) for path in FILES} == set(range(1, 18))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_preset_states_its_claim_and_its_sources(path: Path) -> None:
    experiment = load_experiment(path)
    assert experiment.name == path.stem
    assert experiment.claim is not None and experiment.claim.statement and experiment.claim.source
    assert all(expected.said for expected in experiment.claim.expect)


def expectations() -> list[tuple[str, Expectation]]:
    claims = [(path.stem, load_experiment(path).claim) for path in FILES]
    return [(name, asked) for name, claim in claims if claim is not None for asked in claim.expect]


def test_no_window_around_numbers_is_wider_than_15_percent() -> None:
    asked = expectations()
    assert len(asked) > 100
    for name, one in asked:
        low, high = one.bounds
        if one.measured is not None or one.between is not None:
            middle = (low + high) / 2
            assert high - middle <= WITHIN * middle * (1 + 1e-9), (name, one)
        else:
            assert math.isinf(low) != math.isinf(high), (name, one)


def test_a_number_that_was_measured_is_stated_as_such_and_not_in_words_beside_a_window() -> None:
    for name, one in expectations():
        if one.measured is None:
            assert not re.search(r"measured \d|\(\d|: \d", one.said), (name, one.said)


def test_a_mark_lies_outside_what_it_marks() -> None:
    marked = [one for _, one in expectations() if one.not_reproduced is not None]
    assert len(marked) > 5
    assert all(one.faults() == [] for _, one in expectations())
    for one in marked:
        assert one.not_reproduced is not None
        assert not one.bounds[0] <= one.not_reproduced <= one.bounds[1]


def verdict(value: float | None, **asked: float) -> Verdict:
    return Verdict(Expectation(figure="output_throughput", **asked), value)  # type: ignore[arg-type]


def test_a_mark_is_held_against_what_comes_out() -> None:
    marked = {"measured": 2.0, "not_reproduced": 1.0}
    assert verdict(1.02, **marked).known and not verdict(1.02, **marked).holds
    assert "known not to be reproduced" in verdict(1.02, **marked).sentence()
    for stale, said in ((1.9, "it is reproduced now"), (1.2, "not_reproduced says 1"), (None, "says 1")):
        assert not verdict(stale, **marked).known
        assert "the mark is out of date: " in verdict(stale, **marked).sentence()
        assert said in verdict(stale, **marked).sentence()


@pytest.mark.parametrize(
    ("asked", "value", "holds", "said"),
    [
        ({"measured": 2.0}, 2.29, True, "measured 2, expected 1.7 to 2.3"),
        ({"measured": 2.0}, 2.31, False, "measured 2, expected 1.7 to 2.3"),
        ({"measured": 2.0, "within": 0.05}, 2.11, False, "measured 2, expected 1.9 to 2.1"),
        ({"at_least": 1.0}, 0.99, False, "expected at least 1"),
        ({"at_most": 1.0}, 0.99, True, "expected at most 1"),
        ({"at_most": 1.0}, None, False, "missing"),
    ],
)
def test_a_window_is_read_off_what_is_expected(
    asked: dict[str, float], value: float | None, holds: bool, said: str
) -> None:
    assert verdict(value, **asked).holds == holds
    assert said in verdict(value, **asked).sentence()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("", "nothing is expected; add measured, between, at_least or at_most"),
        ("measured: 2, between: [1, 3]", "measured and between say the range twice; keep one"),
        ("measured: 2, at_least: 1", "measured and at_least, at_most say the range twice; keep one"),
        ("at_least: 2, at_most: 1", "the lowest value is above the highest; swap them"),
        ("at_least: 2, within: 0.1", "within is of a measured number; add measured, or leave it out"),
        ("measured: 2, not_reproduced: 2.1", "not_reproduced 2.1 is what is expected; leave it out"),
        ("measured: 2, within: 0.2", "must be at most 0.15"),
    ],
)
def test_an_expectation_that_cannot_be_held_against_a_run_is_refused_with_its_line(
    tmp_path: Path, asked: str, said: str
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "serve: {model: llama-3.1-8b-instruct, gpu: h100-sxm}\n"
        "workload: {input_len: 9, output_len: 9, max_concurrency: 2, num_prompts: 4}\n"
        "claim:\n  statement: s\n  source: s\n  expect:\n"
        f"  - {{figure: output_throughput{', ' if asked else ''}{asked}}}\n"
    )
    with pytest.raises(InputFaults) as caught:
        load(path)
    assert [said in str(fault) and str(fault).startswith(str(path)) for fault in caught.value.faults] == [
        True
    ]
