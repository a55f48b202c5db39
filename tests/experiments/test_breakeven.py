"""`specfleet breakeven`: the search, what it says over seeds, and the files it leaves."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.experiments.breakeven.answers import Best, answers, best, closed_form, schedule
from specfleet.experiments.breakeven.cell import Cell, Found, assumed, search
from specfleet.experiments.breakeven.command import breakeven_command
from specfleet.experiments.breakeven.figures import drawn_again, heat_map
from specfleet.experiments.breakeven.judge import Verdicts, judge
from specfleet.experiments.breakeven.question import CONCURRENCY, COUNTED, DRAFTS, Breakeven, load_axis
from specfleet.experiments.breakeven.report import breakeven_facts, breakeven_text, write_breakeven
from specfleet.experiments.breakeven.search import (
    ALWAYS,
    AT,
    COARSE,
    EQUAL,
    NEVER,
    QUESTIONS,
    UNMET,
    Curve,
    Figures,
    speedup,
)
from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.run.results import Row, number
from specfleet.experiments.run.run import Run
from specfleet.experiments.schema.faults import InputFaults, UserError
from specfleet.sim.speculation.acceptance import AcceptanceSpec, LowAtom

SMALL = """
name: small
seed: 3
replications: 2
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  max_model_len: 2048
  max_num_seqs: 64
  speculative_config: {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 2}
acceptance: {conditional_acceptance: 0.6, concentration: 18}
workload: {input_len: 100, output_len: 40, max_concurrency: 4, num_prompts: 24}
slo: {tpot_ms: 20}
sweep:
  axes:
    workload.max_concurrency: [1, 8]
    serve.speculative_config.num_speculative_tokens: [0, 2]
report: {baseline: {serve.speculative_config.num_speculative_tokens: 0}}
"""
ANSWERED = ("Yes", "No", "Not settled", "In part", "Yes and no")
PLAIN: Figures = {"output_throughput": 100.0, "mean_tpot_ms": 10.0, "p99_tpot_ms": 10.0}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """An experiment of a few tenths of a second."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def curve(ratio: Callable[[float], float], tolerance: float = 0.01) -> tuple[Curve, list[float]]:
    """A curve with this speedup of throughput, the inverse on TPOT, and the acceptances it is asked for."""
    asked: list[float] = []

    def simulate(alpha: float) -> Figures:
        asked.append(alpha)
        tokens, tpot = 100.0 * ratio(alpha), 10.0 / max(ratio(alpha), 1e-9)
        return {"output_throughput": tokens, "mean_tpot_ms": tpot, "p99_tpot_ms": 1.2 * tpot}

    return Curve(simulate, PLAIN, tolerance), asked


@given(st.floats(0.02, 0.98), st.floats(0.3, 4.0), st.sampled_from([0.01, 0.02, 0.05]))
def test_a_crossing_is_found_within_the_tolerance(at: float, bend: float, tolerance: float) -> None:
    found, _ = curve(lambda alpha: 0.5 + 0.5 * (alpha / at) ** bend, tolerance)
    root = found.root("throughput")
    assert root is not None and root.status == AT and root.alpha is not None
    assert abs(root.alpha - at) <= tolerance
    assert root.crossings == 1


@given(st.floats(0.02, 0.98), st.floats(0.3, 4.0))
def test_nothing_is_simulated_twice_and_little_at_all(at: float, bend: float) -> None:
    found, asked = curve(lambda alpha: 0.5 + 0.5 * (alpha / at) ** bend)
    for question in ("throughput", "mean TPOT", "P99 TPOT", "throughput"):
        found.root(question)
    assert len(asked) == len(set(asked)) == len(found.points)
    assert len(asked) <= COARSE + 1 + 2 * 10


@given(st.integers(0, 99), st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_a_step_is_found_as_well_as_a_slope(cell: int, below: float, above: float) -> None:
    at = (cell + 0.5) / 100
    found, asked = curve(lambda alpha: 1.0 - below if alpha < at else 1.0 + above)
    root = found.root("throughput")
    assert root is not None and root.alpha is not None and abs(root.alpha - at) <= 0.01
    assert len(asked) <= COARSE + 1 + 12


@pytest.mark.parametrize(
    ("ratio", "status"),
    [
        (lambda alpha: 1.1 + alpha, ALWAYS),
        (lambda alpha: 0.5 + 0.4 * alpha, NEVER),
        (lambda alpha: 1.0 + 0.004 * (alpha - 0.5), EQUAL),
        (lambda alpha: 0.0, UNMET),
    ],
)
def test_what_no_acceptance_decides_is_said(ratio: Callable[[float], float], status: str) -> None:
    root = curve(ratio)[0].root("throughput")
    assert root is not None and (root.status, root.alpha) == (status, None)


def test_of_several_crossings_the_last_counts() -> None:
    root = curve(lambda alpha: 1.2 if alpha < 0.3 or alpha > 0.9 else 0.8)[0].root("throughput")
    assert root is not None and root.alpha == pytest.approx(0.905, abs=0.01)
    assert root.crossings == 2


def test_a_question_without_a_figure_has_no_answer() -> None:
    assert curve(lambda alpha: alpha)[0].root("goodput") is None


def test_goodput_from_nothing_is_an_infinite_gain_and_nothing_from_nothing_none() -> None:
    none, some = {"request_goodput": 0.0}, {"request_goodput": 2.0}
    assert speedup("goodput", some, none) == math.inf
    assert speedup("goodput", none, none) == 0.0
    assert speedup("goodput", none, some) == 0.0
    found = Curve(lambda alpha: some if alpha > 0.7 else none, none, 0.01).root("goodput")
    assert found is not None and found.alpha == pytest.approx(0.71, abs=0.011)


def test_the_search_keeps_the_spread_and_the_proposals_and_drops_the_rest() -> None:
    given_spec = AcceptanceSpec(
        by_position=(0.5, 0.4),
        concentration=7.0,
        low_atom=LowAtom(0.1, 0.0, 0.2),
        context_multiplier=((10.0, 1.0), (100.0, 0.5)),
        proposal_probability=0.4,
    )
    found = assumed(given_spec, 0.3)
    assert (found.conditional_acceptance, found.by_position) == (0.3, None)
    assert (found.concentration, found.proposal_probability) == (7.0, 0.4)
    assert (found.low_atom, found.context_multiplier, found.decay) == (None, (), 1.0)


@given(st.lists(st.tuples(st.floats(1.0, 300.0), st.integers(0, 7)), min_size=1, max_size=8))
def test_a_schedule_covers_every_batch_once(pairs: list[tuple[float, int]]) -> None:
    ranges = schedule([Best(batch, k, 1.0, batch) for batch, k in pairs], max_num_seqs=256)
    assert (ranges[0][0], ranges[-1][1]) == (1, 256)
    for before, after in itertools.pairwise(ranges):
        assert after[0] == before[1] + 1
        assert after[2] != before[2]


def test_a_schedule_parts_between_the_batches_tested() -> None:
    found = [Best(1, 5, 2.0, 1.0), Best(16, 3, 1.5, 16.0), Best(64, 3, 1.2, 60.0), Best(256, 0, 1.0, 240.0)]
    assert schedule(found, 256) == [(1, 4, 5), (5, 120, 3), (121, 256, 0)]


def test_nothing_asked_at_any_load_is_an_empty_schedule() -> None:
    assert schedule([], 256) == []


def test_a_rate_that_is_served_drafting_or_not_has_no_break_even_on_throughput(small: Path) -> None:
    rates = ["workload.max_concurrency=null", "replications=1", "report={}"]
    this = Breakeven(small, [*rates, "sweep.axes={workload.request_rate: [2]}"])
    this.execute(1, Reporter(this.total, quiet=True))
    asked = {answer.question for answer in answers(this)}
    assert asked == {"mean TPOT", "P99 TPOT", "goodput"}
    assert "length: tokens a verification at break-even on mean TPOT" in breakeven_text(this)
    facts = breakeven_facts(this)
    assert "throughput" not in facts["num_speculative_tokens_per_batch_size"]  # type: ignore[operator]
    figure = heat_map(this)
    assert figure is not None and "mean TPOT" in figure.axes[0].get_title(loc="left")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["sweep.axes.serve.speculative_config.num_speculative_tokens=[0]"], "no K above 0"),
        (["sweep.axes.serve.max_num_seqs=[32, 64]"], "looks at one setup"),
        (["sweep.axes.workload.max_concurrency=[-1]"], "max_concurrency"),
    ],
)
def test_a_file_without_a_question_is_refused(small: Path, overrides: list[str], said: str) -> None:
    with pytest.raises(InputFaults, match=said):
        Breakeven(small, overrides)


def test_a_tolerance_or_folder_of_no_use_is_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(InputFaults, match="--tolerance"):
        Breakeven(small, tolerance=0.0)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(InputFaults, match="not a folder of `specfleet breakeven`"):
        Breakeven(small, out=tmp_path / "mine").prepare()


def test_loads_come_from_the_sweep_or_the_file(small: Path) -> None:
    assert Breakeven(small).loads == (1.0, 8.0)
    lone = Breakeven(small, ["sweep={}", "report={}"])
    assert (lone.axis, lone.loads, lone.drafts) == ("workload.max_concurrency", (4.0,), (2,))
    rates = ["workload.max_concurrency=null", "sweep.axes={workload.request_rate: [1, .inf]}", "report={}"]
    assert load_axis(load_experiment(small, rates)) == "workload.request_rate"
    assert Breakeven(small, rates).loads == (1.0, math.inf)


def test_k_0_is_added_where_the_file_leaves_it_out(small: Path) -> None:
    axis = "sweep.axes.serve.speculative_config.num_speculative_tokens=[1, 3]"
    found = Breakeven(small, [axis])
    assert found.drafts == (1, 3)
    assert found.configs[8.0, 0].serve.speculative_config is None
    assert found.configs[8.0, 3].serve.speculative_config is not None


def test_where_the_search_says_it_breaks_even_the_simulation_does(small: Path) -> None:
    this = Breakeven(small, tolerance=0.02)
    plain = search(Cell(this.configs[8.0, 0], 3, 8.0, 0, 0.02))
    found = search(Cell(this.configs[8.0, 2], 3, 8.0, 2, 0.02, plain.own))
    assert set(found.roots) == set(QUESTIONS)
    assert found.alphas == tuple(sorted(found.alphas)) and found.alphas[0] == 0.0 and found.alphas[-1] == 1.0
    root = found.roots["throughput"].alpha
    assert root is not None
    ratios = [speedup("throughput", figures, plain.own) for figures in found.figures]
    pairs = [(a, r) for a, r in zip(found.alphas, ratios, strict=True) if r is not None]
    assert max(r for a, r in pairs if a <= root) <= 1.0 <= min(r for a, r in pairs if a >= root)
    nearest = [a for a, _ in pairs if abs(a - root) <= 0.02]
    assert min(nearest) <= root <= max(nearest)


def test_the_command_writes_the_same_answer_with_any_number_of_processes(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fewer = ["workload.output_len=20", "acceptance.decay=0.99"]
    for jobs in (1, 2):
        out = tmp_path / f"jobs{jobs}"
        assert breakeven_command(small, fewer, jobs, out, tolerance=0.1, plots=jobs == 1, quiet=True) == 0
    one, two = ((tmp_path / f"jobs{jobs}" / "breakeven.json").read_bytes() for jobs in (1, 2))
    assert one == two
    said = capsys.readouterr().out
    assert "num_speculative_tokens_per_batch_size" in said
    assert "the file's decay count only for its own acceptance" in said
    assert sorted(path.name for path in (tmp_path / "jobs1" / "plots").iterdir()) == [
        f"{name}.png" for name in ("break_even", "speedup_map")
    ]
    content = json.loads(one)
    with (tmp_path / "jobs1" / "breakeven.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(content["break_even"]) == 2 * len(QUESTIONS)
    assert content["simulations"] == sum(1 + len(c["conditional_acceptance"]) for c in content["curves"]) + 4
    row = next(r for r in rows if (r["load"], r["question"]) == ("8", "throughput"))
    assert abs(float(row["own_conditional_acceptance"]) - 0.6) < 0.05
    assert float(row["draft_acceptance_rate"]) == pytest.approx((float(row["acceptance_length"]) - 1) / 2)


def test_throughput_breaks_even_near_the_closed_form(small: Path) -> None:
    lone = ["sweep.axes.workload.max_concurrency=[8]", "replications=1", "acceptance.concentration=.inf"]
    this = Breakeven(small, [*lone, "workload.output_len=150"], tolerance=0.02)
    for cell in this.cells((0,)):
        this.found[8.0, 0, cell.seed] = search(cell)
    (cell,) = this.cells(this.drafts)
    form, root = closed_form(this, 8.0, 2), search(cell).roots["throughput"].alpha
    assert form is not None and form.conditional is not None and root is not None
    assert root == pytest.approx(form.conditional, abs=0.06)


def test_a_change_of_the_load_or_of_k_is_no_sweep(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(SMALL.partition("sweep:")[0])
    search = Breakeven(file, ("workload.max_concurrency=6", f"{DRAFTS}=3"), tmp_path / "out")
    assert (search.loads, search.drafts) == ((6.0,), (3,))


def test_an_interrupted_search_goes_on_and_writes_the_same_bytes(small: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert breakeven_command(small, (), 1, whole, 0.2, plots=False, quiet=True) == 0
    assert breakeven_command(small, (), 1, cut, 0.2, plots=False, quiet=True) == 0
    kept = sorted((cut / "searches").iterdir())
    for path in kept[::2]:
        path.unlink()
    (cut / "breakeven.json").unlink()
    search = Breakeven(small, (), cut, 0.2)
    search.prepare(resume=True)
    reporter = Reporter(search.total, True, COUNTED)
    search.execute(1, reporter)
    assert reporter.done == reporter.total == len(kept[::2]), "what was kept is neither done nor to be done"
    write_breakeven(search)
    search.finish()
    for name in ("breakeven.json", "breakeven.csv"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
    assert sorted((cut / "searches").iterdir()) == kept


def test_a_verdict_is_that_of_a_run_of_the_same_file(small: Path, tmp_path: Path) -> None:
    this = Breakeven(small, tolerance=0.2)
    run = Run(small, out=tmp_path / "run")
    run.execute(run.prepare(resume=False), 1, Reporter(0, quiet=True))
    rows = {(number(row, CONCURRENCY), number(row, DRAFTS)): row for row in run.summary()}
    for asked in this.asked():
        found, row = judge(asked), rows[asked.load, float(asked.k)]
        assert found.requests == 24
        for name in ("speedup_output_throughput", "speedup_mean_tpot", "speedup_p99_tpot"):
            assert found.row[f"{name}_verdict"] == row[f"{name}_verdict"]
            for end in ("", "_low", "_high"):
                assert found.row[name + end] == pytest.approx(row[name + end], rel=1e-9)


def test_a_cell_goes_on_until_its_verdicts_are_settled_or_at_most(small: Path) -> None:
    grown = ["workload.num_prompts=null", "run.at_most=3000", "replications=1", "slo=null"]
    shown = []
    for asked in Breakeven(small, grown).asked():
        found = judge(asked)
        open_yet = [key for key, value in found.row.items() if value == "not settled" and "class" not in key]
        assert found.requests == 3000 or not open_yet
        assert 2000 < found.requests <= 3000
        shown.append(found.to_json())
    assert [Verdicts.from_json(text).to_json() for text in shown] == shown


def test_the_answer_stands_first_and_a_search_that_goes_on_resumes_to_the_same_bytes(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grown = ["workload.num_prompts=null", "run.at_most=2000", "replications=1", "workload.output_len=10"]
    for jobs in (1, 2):
        assert breakeven_command(small, grown, jobs, tmp_path / f"{jobs}", 0.2, plots=False, quiet=True) == 0
    said = capsys.readouterr().out
    content = json.loads((tmp_path / "1" / "breakeven.json").read_text())
    assert said.startswith(content["answer"])
    assert content["answer"].split(":")[0].split(",")[0] in ANSWERED
    assert "went on for 2,000 requests, of 2,000 at most (run.at_most)" in said
    cut = tmp_path / "2"
    for path in sorted((cut / "searches").iterdir())[::2]:
        path.unlink()
    again = breakeven_command(small, grown, 1, cut, 0.2, plots=False, quiet=True, resume=True)
    assert again == 0
    for name in ("breakeven.json", "breakeven.csv"):
        assert (cut / name).read_bytes() == (tmp_path / "1" / name).read_bytes()


def test_without_a_spread_p99_breaks_even_somewhere_in_a_band(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = ["acceptance={conditional_acceptance: 0.6}", "sweep.axes.workload.max_concurrency=[8]"]
    out = tmp_path / "out"
    assert breakeven_command(small, unknown, 1, out, 0.1, plots=True, quiet=True) == 0
    said = capsys.readouterr().out
    assert "their spread (acceptance.concentration) is not given" in said
    rows = {row["question"]: row for row in json.loads((out / "breakeven.json").read_text())["break_even"]}
    differ = rows["P99 TPOT"]["conditional_acceptance"]
    alike = rows["P99 TPOT"]["conditional_acceptance_other_end"]
    assert alike < differ and f"{alike:.2f}-{differ:.2f}" in said
    assert rows["throughput"]["conditional_acceptance_other_end"] is None
    drawn = {path.name: path.read_bytes() for path in (out / "plots").iterdir()}
    for path in (out / "plots").iterdir():
        path.unlink()
    assert {path.name: path.read_bytes() for path in drawn_again(out)} == drawn
    next(iter((out / "searches").iterdir())).unlink()
    with pytest.raises(UserError, match="does not hold all of its searches"):
        drawn_again(out)


def test_the_best_k_is_one_that_pays_and_what_may_be_better_is_named(small: Path) -> None:
    this = Breakeven(
        small, ["sweep.axes.serve.speculative_config.num_speculative_tokens=[0, 1, 2]"], None, 0.2
    )
    figures = {"output_throughput": 100.0, "batch": 8.0}
    for k in (0, 1, 2):
        for seed in this.seeds:
            this.found[8.0, k, seed] = Found(figures)
    for k, ratio, said in ((1, 1.04, "pays"), (2, 1.06, "not settled")):
        row: Row = {"speedup_output_throughput": ratio, "speedup_output_throughput_verdict": said}
        this.verdicts[8.0, k] = Verdicts(row, {}, 24)
    assert [(one.k, one.unsettled) for one in best(this, "throughput")] == [(1, (2,))]
    row = {"speedup_output_throughput": 1.01, "speedup_output_throughput_verdict": "does not"}
    this.verdicts[8.0, 1] = Verdicts(row, {}, 24)
    assert [(one.k, one.speedup, one.unsettled) for one in best(this, "throughput")] == [(0, 1.0, (2,))]
