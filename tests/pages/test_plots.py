"""The figures of a finished run."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from report_runs import judged

from specfleet.experiments.cli.main import main
from specfleet.experiments.figures.answer import answer, stretches
from specfleet.experiments.figures.data import Shown, read, shown
from specfleet.experiments.figures.lines import bounds
from specfleet.experiments.figures.run import draw_run, figures, metric, speedup, tails
from specfleet.experiments.figures.steps import PARTS, step_time, two_sides
from specfleet.experiments.figures.style import COLOURS, Horizontal, look, styled
from specfleet.experiments.run.processes import Workers
from specfleet.experiments.run.results import Row, number, write_summary
from specfleet.experiments.schema.blocks.experiment import METRICS
from specfleet.experiments.validate.figures import ticks
from specfleet.experiments.words.names import label
from specfleet.experiments.words.values import text

LOAD, K, GPU = "workload.max_concurrency", "serve.speculative_config.num_speculative_tokens", "serve.gpu"
LOADS, KS = (1, 8, 64), (0, 3, 5)
CONFIG = "slo: {ttft_ms: 2000.0, tpot_ms: 60.0, e2el_ms: null}\nserve: {model: a/B-70B, gpu: h100-sxm}\n"
NAMES = ("answer", "throughput", "speedup", "tails", "step_time", "two_sides", "mean_tpot_ms", "p99_ttft_ms")


@pytest.fixture(autouse=True)
def _styled() -> Iterator[None]:
    """Figures are made in the product's look."""
    with styled():
        yield


def report(**changes: object) -> dict[str, object]:
    """The block `report` of a manifest."""
    y = ["output_throughput", "mean_tpot_ms", "p99_ttft_ms"]
    return {"x": LOAD, "lines": K, "y": y, "baseline": {K: 0}} | changes


def point(load: float, k: int, replications: int = 1) -> Row:
    """A row of summary.csv. Drafts gain 1.5 tokens and cost more at higher load: K > 0 loses at 64."""
    times = {f"step_{term}_ms": 1.0 + i for i, (term, *_) in enumerate(PARTS)}
    row: Row = {
        LOAD: load,
        K: k,
        "replications": replications,
        "output_throughput": 100.0 * load**0.7,
        "mean_tpot_ms": 10.0 + load,
        "p99_tpot_ms": 12.0 + load,
        "p99_itl_ms": 12.0 + 2 * load,
        "p99_ttft_ms": 100.0 + load,
        **times,
        "step_ms": (1 + 0.3 * k * math.log2(1 + load) / 3) * sum(times.values()),
    }
    if k:
        ratio = 2.0 - 0.25 * math.log2(load) + 0.01 * k
        row |= judged("speedup_output_throughput", ratio) | judged("speedup_p99_tpot", ratio + 0.5)
        row |= {"tokens_per_step": 2.5, "verify_overhead": 0.02 * load, "draft_overhead": 0.1, "gain": 1.9}
    if replications > 1:
        row |= {f"{key}_ci95": 0.05 * number(row, key) for key in ("output_throughput", "p99_tpot_ms")}
    return row


def grid(replications: int = 1, loads: Sequence[float] = LOADS, ks: Sequence[int] = KS) -> list[Row]:
    """A row a point."""
    return [point(load, k, replications) for load, k in itertools.product(loads, ks)]


def arranged(rows: Sequence[Row], axes: Sequence[str] = (LOAD, K), **changes: object) -> Shown:
    """A run ready to be drawn."""
    config = {"slo": {"ttft_ms": 2000.0, "tpot_ms": 60.0, "e2el_ms": None}}
    return shown(rows, axes, report(**changes), config, "test")


def folder(path: Path, rows: Sequence[Row], axes: Mapping[str, Sequence[object]], **changes: object) -> Path:
    """Writes the folder of a finished run."""
    path.mkdir()
    write_summary(path / "summary.csv", [{"point": f"p{i}", **row} for i, row in enumerate(rows)])
    manifest = {"specfleet": "0", "whole": True, "name": "test", "axes": axes, "report": report(**changes)}
    (path / "manifest.json").write_text(json.dumps(manifest))
    (path / "resolved.yaml").write_text(CONFIG)
    return path


def made(figure: Figure | None) -> Figure:
    """A figure that is there."""
    assert figure is not None
    return figure


def error_bars(ax: Axes) -> int:
    """How many lines of a panel have error bars."""
    return sum(isinstance(container, ErrorbarContainer) for container in ax.containers)


def said(figure: Figure) -> str:
    """The title."""
    return figure.get_suptitle()


def test_every_figure_is_written_as_asked_and_as_the_same_svg_with_and_without_png(tmp_path: Path) -> None:
    axes = {LOAD: LOADS, K: KS}
    asked = {"a": ["png", "svg"], "b": ["svg"]}
    runs = [folder(tmp_path / name, grid(replications=2), axes, formats=asked[name]) for name in ("a", "b")]
    both, alone = (draw_run(run) for run in runs)
    assert [path.name for path in both] == [f"{n}.{end}" for n in NAMES for end in ("png", "svg")]
    assert [path.name for path in alone] == [f"{n}.svg" for n in NAMES]
    assert all(path.parent == runs[0] / "plots" and path.stat().st_size > 1000 for path in both)
    for one, other in zip(both[1::2], alone, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert "<text" in one.read_text()
        assert "<dc:date>" not in one.read_text()


def test_figures_drawn_side_by_side_are_those_drawn_alone(tmp_path: Path) -> None:
    runs = [folder(tmp_path / name, grid(), {LOAD: LOADS, K: KS}) for name in ("a", "b")]
    with Workers(2) as workers:
        assert list(workers.in_order(math.factorial, [3, 4])) == [6, 24]
        assert workers.started
        together = draw_run(runs[0], workers)
    alone = draw_run(runs[1])
    assert [path.name for path in together] == [path.name for path in alone]
    assert [path.read_bytes() for path in together] == [path.read_bytes() for path in alone]


def test_a_point_without_axes_gets_the_split_of_its_step_only(tmp_path: Path) -> None:
    row = {key: value for key, value in point(8, 3).items() if key not in (LOAD, K)}
    run = folder(tmp_path / "run", [row], {}, x=None, lines=None, baseline=None)
    assert [path.name for path in draw_run(run)] == ["step_time.png"], "PNG where nothing is asked"


def test_a_plain_run_gets_no_figure_about_speculation() -> None:
    rows = [{key: value for key, value in point(load, 0).items() if key != K} for load in LOADS]
    run = arranged(rows, (LOAD,), lines=None, baseline=None)
    there = {name for name, figure in figures(run) if figure is not None}
    assert there == set(NAMES) - {"answer", "speedup", "two_sides"}


@settings(max_examples=12, deadline=None)
@given(st.sets(st.sampled_from(sorted(set(point(8, 3)) - {LOAD, K})), max_size=12))
def test_a_missing_column_costs_only_the_figures_that_show_it(missing: set[str]) -> None:
    rows = [{key: value for key, value in row.items() if key not in missing} for row in grid(ks=(0, 3))]
    with styled():
        there = {name for name, figure in figures(arranged(rows)) if figure is not None}
    assert ("throughput" in there) == ("output_throughput" not in missing)
    assert ("tails" in there) == (not {"p99_tpot_ms", "p99_itl_ms"} <= missing)
    assert ("mean_tpot_ms" in there) == ("mean_tpot_ms" not in missing)
    assert ("step_time" in there) == (not any(f"step_{term}_ms" in missing for term, *_ in PARTS))


@pytest.mark.parametrize("replications", [1, 2])
def test_bands_appear_only_with_replications(replications: int) -> None:
    run = arranged(grid(replications))
    for ax in (made(metric(run, "output_throughput")).axes[0], made(tails(run)).axes[0]):
        assert len(ax.collections) == (len(KS) if replications > 1 else 0)
        assert error_bars(ax) == 0


def test_a_point_without_a_neighbour_has_a_bar_for_its_band() -> None:
    ax = made(metric(arranged(grid(2, loads=(8,))), "output_throughput")).axes[0]
    assert error_bars(ax) == len(KS)


def test_a_band_reaches_over_all_that_a_figure_may_be() -> None:
    row: Row = {"p99_tpot_ms": 10.0, "p99_tpot_ms_ci95": 1.0}
    assert bounds(row, "p99_tpot_ms") == (9.0, 11.0)
    assert bounds(row | {"p99_tpot_ms_least": 6.0, "p99_tpot_ms_most": 10.5}, "p99_tpot_ms") == (6.0, 11.0)
    assert bounds({"p99_tpot_ms": 10.0, "p99_tpot_ms_ci95": math.nan}, "p99_tpot_ms") is None
    assert bounds(judged("speedup_p99_tpot", 1.2), "speedup_p99_tpot") == pytest.approx((1.19, 1.21))


def test_every_metric_carries_its_unit() -> None:
    assert not [key for key in METRICS if not label(key).endswith(")")]


def test_axes_carry_their_units() -> None:
    assert label(LOAD) == "concurrency (users or requests in flight)"
    assert label("workload.request_rate") == "request rate (requests/s)"
    assert label("client.send_ms") == "send (ms)"
    ax = made(metric(arranged(grid()), "p99_ttft_ms")).axes[0]
    assert (ax.get_xlabel(), ax.get_ylabel()) == (f"{label(LOAD)}, log scale", "P99 TTFT (ms)")


def test_ticks_are_the_tested_loads_on_a_logarithmic_axis() -> None:
    ax = made(metric(arranged(grid()), "output_throughput")).axes[0]
    assert ax.get_xscale() == "log"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "8", "64"]
    assert list(ax.get_xticks(minor=True)) == []


def test_a_logarithmic_vertical_axis_says_so() -> None:
    ax = made(metric(arranged(grid(loads=(1, 64, 4096))), "p99_tpot_ms")).axes[0]
    assert (ax.get_yscale(), ax.get_ylabel()) == ("log", "P99 TPOT (ms), log scale")


def test_the_answer_shows_the_gain_the_tail_and_the_crossing_as_a_range() -> None:
    gain, p99, *strips = made(answer(arranged(grid()))).axes
    assert gain.get_title("left").startswith("Gain: throughput over K = 0 (plain)")
    assert p99.get_title("left") == "P99 TPOT"
    hatched = [[c.get_paths()[0].get_extents().intervalx for c in ax.collections] for ax in strips]
    assert [[list(found) for found in mine] for mine in hatched] == [[[8, 64], [8, 64]], [[8, 64]]]
    assert [[t.get_text() for t in ax.get_yticklabels()] for ax in strips] == [["K = 3", "K = 5"]] * 2
    assert "SLO\n60 ms" in {t.get_text() for t in p99.texts}


@given(
    st.lists(st.sampled_from(["pays", "does not", "not settled"]), min_size=2, max_size=9),
)
def test_stretches_cover_the_loads_and_every_change_is_a_range(verdicts: list[str]) -> None:
    question = "speedup_p99_tpot"
    rows: list[Row] = [
        {LOAD: float(i), question: 1.0, f"{question}_verdict": said} for i, said in enumerate(verdicts)
    ]
    found = stretches(rows, LOAD, question)
    assert (found[0][0], found[-1][1]) == (0.0, len(verdicts) - 1.0)
    for before, after in itertools.pairwise(found):
        assert before[1] == after[0] and before[2] != after[2]
        assert "not settled" in (before[2], after[2])
    for low, high, said in found:
        inside = {verdicts[i] for i in range(int(low), int(high) + 1)}
        assert inside == {said} or said == "not settled"


def test_without_a_load_or_a_baseline_there_is_no_answer_to_draw() -> None:
    assert answer(arranged(grid(), baseline=None)) is None
    assert answer(arranged(grid(), x=K, lines=LOAD)) is None


def test_the_verdict_stands_with_the_name_of_a_line() -> None:
    throughput, tpot = made(speedup(arranged(grid()))).axes
    texts = [legend_texts(ax) for ax in (throughput, tpot)]
    assert texts[0] == [f"K = {k}: pays up to 8, stops between 8 and 64" for k in (3, 5)]
    assert texts[1] == ["K = 3: pays up to 8, not settled at 64", "K = 5: pays up to 64"]


def legend_texts(ax: Axes) -> list[str]:
    """What a legend says, each entry on one line."""
    legend = ax.get_legend()
    assert legend is not None
    return [entry.get_text().replace("\n", " ") for entry in legend.get_texts()]


def test_there_is_no_speedup_without_a_baseline() -> None:
    assert speedup(arranged(grid(), baseline=None)) is None


def test_the_limit_of_the_slo_is_drawn_on_percentiles_only() -> None:
    run = arranged(grid())
    assert "SLO\n60 ms" in {t.get_text() for t in made(tails(run)).axes[0].texts}
    assert "SLO\n2000 ms" in {t.get_text() for t in made(metric(run, "p99_ttft_ms")).axes[0].texts}
    assert not made(metric(run, "mean_tpot_ms")).axes[0].texts


def test_a_limit_that_is_swept_is_not_drawn() -> None:
    rows = [{**row, "slo.tpot_ms": 60.0} for row in grid()]
    assert arranged(rows, (LOAD, K, "slo.tpot_ms")).limits_ms == {"ttft": 2000.0}


def test_the_stacked_terms_are_the_whole_step() -> None:
    above, *_ = made(step_time(arranged(grid()))).axes
    tops = [bar.get_y() + bar.get_height() for bar in above.patches]  # type: ignore[attr-defined]
    assert max(tops) == pytest.approx(sum(1.0 + i for i in range(len(PARTS))))


def test_a_third_axis_is_shown_at_one_value_and_the_title_says_so() -> None:
    rows = [{**row, GPU: gpu} for gpu in ("h100-sxm", "h100-pcie") for row in grid()]
    run = arranged(rows, (GPU, LOAD, K))
    assert len(run.rows) == len(LOADS) * len(KS)
    assert said(made(metric(run, "output_throughput"))).endswith("(h100-sxm)")


def test_an_axis_of_the_baseline_without_a_place_is_shown_where_it_differs() -> None:
    rows = [{**row, GPU: "h100-sxm"} for row in grid()]
    assert arranged(rows, (LOAD, GPU, K), lines=GPU).fixed == "K = 3"


@pytest.mark.parametrize("values", [("h100-sxm", "h100-pcie", None), (1.0, 4.0, math.inf)])
def test_values_without_a_place_on_a_scale_are_categories(values: Sequence[object]) -> None:
    rows: list[Row] = [{**point(8, k), LOAD: value} for value in values for k in KS]
    run = arranged(rows)
    axis = Horizontal.of(LOAD, run)
    assert not axis.numeric
    assert [axis.place(value) for value in values] == [0.0, 1.0, 2.0]
    ax = made(metric(run, "output_throughput")).axes[0]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == [text(value) for value in values]
    assert speedup(run) and two_sides(run) and step_time(run)


def test_a_metric_can_be_the_horizontal_axis() -> None:
    run = arranged(grid(), x="p99_tpot_ms", y=["output_throughput"])
    ax = made(metric(run, "output_throughput")).axes[0]
    assert ax.get_xlabel() == "P99 TPOT (ms)"
    assert [t.get_text() for t in ax.texts] == ["1", "8", "64"]
    assert run.along == LOAD


def test_what_speculation_loses_is_hatched() -> None:
    figure = made(two_sides(arranged(grid())))
    names = {name for ax in figure.axes for name in ax.get_legend_handles_labels()[1]}
    assert {"speculation wins", "speculation loses"} <= names
    won = made(two_sides(arranged(grid(loads=(1, 2)))))
    assert "speculation loses" not in {n for ax in won.axes for n in ax.get_legend_handles_labels()[1]}


@pytest.mark.parametrize("judged_on", ["speedup_output_throughput", "speedup_mean_tpot"])
def test_the_two_sides_agree_with_the_ratio_of_the_whole_run(judged_on: str) -> None:
    rows = [
        {key.replace("speedup_output_throughput", judged_on): value for key, value in row.items()}
        for row in grid()
    ]
    run = arranged(rows)
    ax = made(two_sides(run)).axes[0]
    drawn = {line.get_label(): np.asarray(line.get_ydata()) for line in ax.lines}
    ratios = [number(row, judged_on) for row in run.lines[1].rows]
    assert drawn["tokens per step"] / drawn["time of a step, all told"] == pytest.approx(ratios)
    name = {"speedup_output_throughput": "throughput", "speedup_mean_tpot": "mean TPOT"}[judged_on]
    assert [text.get_text() for text in ax.texts] == [name, *(f"{ratio:.2f}" for ratio in ratios)]


def test_without_a_comparison_the_two_sides_are_those_of_a_step() -> None:
    plain = [{key: v for key, v in row.items() if not key.startswith("speedup")} for row in grid()]
    ax = made(two_sides(arranged(plain, baseline=None))).axes[0]
    names = ax.get_legend_handles_labels()[1]
    assert "step time, same batch" in names and "time of a step, all told" not in names
    assert [text.get_text() for text in ax.texts] == ["gain", "1.90", "1.90", "1.90"]


@given(st.floats(1e-3, 1e5), st.floats(1.44, 1e4))
def test_the_axes_of_a_validation_have_a_few_round_numbers(low: float, span: float) -> None:
    found = ticks(low, low * span)
    assert len(found) <= 7 and found == sorted(set(found))
    assert all(low <= value <= low * span * (1 + 1e-9) for value in found)
    assert len(found) >= 2


def test_eight_lines_look_different_without_colour_and_with() -> None:
    looks = [look(line) for line in arranged(grid(ks=range(9))).lines]
    assert len({one.color for one in looks}) == len(looks) == len(COLOURS) + 1
    assert len({one.marker for one in looks}) == len(looks)


def test_a_run_read_back_is_the_run_that_was_arranged(tmp_path: Path) -> None:
    run = read(folder(tmp_path / "run", grid(), {LOAD: LOADS, K: KS}))
    assert [line.label for line in run.lines] == ["K = 0 (plain)", "K = 3", "K = 5"]
    assert [line.baseline for line in run.lines] == [True, False, False]
    assert run.setting == "B-70B, h100-sxm"
    assert run.limits_ms == {"ttft": 2000.0, "tpot": 60.0}


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not the folder of a finished run"):
        draw_run(tmp_path)


def test_figures_come_later_from_a_run_made_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder(tmp_path / "run", grid(), {LOAD: LOADS, K: KS}, formats=["svg"])
    drawn = []
    for command in (["plot", "--format", "png"], ["report"], ["report", "--figures"]):
        with pytest.raises(SystemExit) as ended:
            main([*command, str(run)])
        assert ended.value.code == 0
        drawn.append({path.name for path in (run / "plots").iterdir()})
    assert drawn == [{f"{n}.png" for n in NAMES}] * 2 + [{f"{n}.{e}" for n in NAMES for e in ("png", "svg")}]
    said = capsys.readouterr().out.splitlines()
    assert said[-len(NAMES) :] == [str(run / "plots" / f"{name}.svg") for name in NAMES]
    assert said[-len(NAMES) - 1] == str(run / "report.html")
