"""`specfleet theory`: the tables, the options and the figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from specfleet.experiments.cli.main import app
from specfleet.experiments.figures.style import styled
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.theory.command import exactness_command, theory_command
from specfleet.experiments.theory.exactness import Exactness
from specfleet.experiments.theory.figures import theory_figure
from specfleet.experiments.theory.question import Theory
from specfleet.experiments.theory.tables import memory_text, theory_text
from specfleet.experiments.words.acceptance import BOTH_RIGHT
from specfleet.sim.speculation.exactness import Output, Rollback


def row(text: str, table: int, start: str) -> list[str]:
    """The cells of the row of a table (0 for the first) that starts with a cell."""
    found = [line.split() for line in text.splitlines() if line.split()[:1] == [start]]
    return found[table]


def test_tokens_stand_where_acceptance_and_k_meet() -> None:
    text = theory_text(Theory(alphas=(0.6, 0.8, 0.9), drafts=(4, 5)))
    assert row(text, 0, "0.8") == ["0.8", "3.36", "3.69"]
    assert row(text, 0, "0.9")[2] == "4.69"
    assert row(text, 0, "0.6")[2] == "2.38"


def test_speedups_of_ten_drafts_are_printed_with_the_best_k() -> None:
    text = theory_text(Theory(alphas=(0.9,), drafts=tuple(range(1, 11)), cost_ratio=0.04))
    cells = row(text, 2, "0.9")
    assert cells[1:11] == ["1.83", "2.51", "3.07", "3.53", "3.90", "4.21", "4.45", "4.64", "4.79", "4.90"]
    assert cells[11:] == ["15", "5.09"]


def test_break_even_is_given_under_both_definitions_with_a_line_why() -> None:
    text = theory_text(Theory(drafts=(5,), cost_ratio=0.0, overhead=0.15))
    assert row(text, 0, "5") == ["5", "1.150", "0.130", "0.030"]
    assert BOTH_RIGHT in text.splitlines()


def test_a_target_out_of_reach_is_never_met() -> None:
    text = theory_text(Theory(drafts=(1, 5), cost_ratio=0.04, target_speedup=3.0))
    assert "Acceptance for a speedup of 3" in text
    assert row(text, 1, "1") == ["1", "3.120", "never", "never"]
    assert row(text, 1, "5") == ["5", "3.600", "0.789", "0.520"]


def test_free_drafts_that_all_pass_have_no_best_k() -> None:
    assert row(theory_text(Theory(alphas=(1.0,), drafts=(1,), cost_ratio=0.0)), 2, "1")[2:5] == [
        "64",
        "or",
        "more",
    ]


def test_a_head_holds_an_eighth_of_the_kv_of_a_1b_draft_model() -> None:
    lines = [line.split() for line in memory_text().splitlines()]
    head = next(cells for cells in lines if cells and "EAGLE3" in cells[0])
    small = next(cells for cells in lines if cells and "1B" in cells[0])
    assert (head[-3], small[-3]) == ("4,096", "32,768")
    assert (head[-2], small[-2]) == ("1.2%", "10.0%")
    assert 2.4 < float(small[-4]) < 2.6
    assert 3.0 < float(head[-4]) < 3.3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"alphas": (1.2,)}, "--alpha"),
        ({"drafts": (0,)}, "--k"),
        ({"cost_ratio": -0.1}, "--cost-ratio"),
        ({"overhead": float("nan")}, "--overhead"),
        ({"target_speedup": 0.0}, "--target-speedup"),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(options: dict[str, float], said: str) -> None:
    with pytest.raises(InputFaults, match=said):
        Theory(**options)  # type: ignore[arg-type]


def test_the_command_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "theory.svg"
    assert theory_command([0.8, 0.6, 0.8], [4, 2], target_speedup=2.0, figure=path) == 0
    assert path.read_text().startswith("<?xml")
    assert row(capsys.readouterr().out, 0, "0.6") == ["0.6", "1.96", "2.31"]


def test_the_figure_has_a_line_an_acceptance_and_rings_the_best_k() -> None:
    asked = Theory(alphas=(0.5, 0.9), drafts=(1, 2, 3, 4), target_speedup=1.5)
    with styled():
        tokens, speed, need = theory_figure(asked).axes
    assert [line.get_label() for line in tokens.lines] == ["a = 0.5", "a = 0.9"]
    rings = [line for line in speed.lines if line.get_markersize() == 11]
    assert [np.asarray(ring.get_xdata()).tolist() for ring in rings] == [[asked.best(0.5)]]
    assert len(need.lines) == 4


def test_exactness_is_measured_and_a_broken_residual_is_found_beside_the_right_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exactness_command() == 0
    text = capsys.readouterr().out
    rows = [
        line for line in text.splitlines() if line.split()[:1] in (["chain"], ["tree"]) and "exact" in line
    ]
    assert len(rows) == 8
    assert all(("NOT exact" in line) == ("broken" in line) for line in rows)
    assert (
        "Tree mask" in text
        and "Rollback by logical length" in text
        and "Collapse: from T = 0 to T = 1.5" in text
    )


def test_exactness_fails_where_what_is_right_is_not_exact_or_what_is_broken_passes() -> None:
    exact, wrong = Output(10, 1.0, 2.0, 0.0), Output(10, 3.0, 2.0, 0.0)
    kv = Rollback(1, 5, 2, 0, whole=True)

    def found(right: Output, broken: Output, rollback: Rollback = kv) -> bool:
        outputs = {("chain", "greedy", "right"): right, ("chain", "greedy", "broken"): broken}
        return Exactness(exact, outputs, {"chain": rollback}, {}, {}).holds

    assert found(exact, wrong)
    assert not found(wrong, wrong) and not found(exact, exact)
    assert not found(exact, wrong, replace(kv, whole=False))


def test_options_of_the_closed_forms_are_refused_with_exactness() -> None:
    done = CliRunner().invoke(app, ["theory", "--exactness", "--k", "3", "--overhead", "0.1"])
    assert done.exit_code == 2
    assert "--k" in done.output and "--overhead" in done.output and "--alpha" not in done.output
