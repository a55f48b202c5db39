"""Plans: what may be asked, the share of one replica, bounds, the search, and a plan from file to page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_toys import SMALL, every
from vllm_command import faults

from specfleet.experiments.load.config import load
from specfleet.experiments.load.rules.plan import plan_conflicts, slo_conflicts
from specfleet.experiments.load.sweep import with_values
from specfleet.experiments.plan.asking import Reply
from specfleet.experiments.plan.command import plan_command
from specfleet.experiments.plan.neighbours import BETTER, EVEN, FAILS, LESS_ROOM, OPEN, Neighbour
from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.planner import Planner
from specfleet.experiments.plan.report import plan_text
from specfleet.experiments.plan.search import Entry, Search
from specfleet.experiments.plan.seen import Allowed, Judged, TrialFigures, judge, of_limit, worst
from specfleet.experiments.plan.traffic import Traffic, Trial, dealt
from specfleet.experiments.plan.trials import measure
from specfleet.experiments.point.acceptance_specs import scaled
from specfleet.experiments.point.bounds import Bound, MeanLengths, bound
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.plan import Slo
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.words.width import fitted, fitting
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.workloads.arrivals import open_loop
from specfleet.workloads.build import Purpose, stream


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A small plan."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def experiment(file: Path) -> Experiment:
    """The same, read."""
    return load(file).experiment


# What may be asked


def test_limits_are_of_one_form(experiment: Experiment) -> None:
    both = experiment.model_copy(update={"slo": Slo(p99_ttft_ms=1.0, tpot_ms=1.0)})
    assert "keep one form" in next(iter(slo_conflicts(both))).message
    share = experiment.model_copy(update={"slo": Slo(p99_ttft_ms=1.0, attainment=0.9)})
    assert "is a percentile" in next(iter(slo_conflicts(share))).message
    assert not list(slo_conflicts(experiment))


def test_goodput_of_percentile_limits_counts_the_highest_percentile() -> None:
    slo = Slo(p50_ttft_ms=100.0, p99_ttft_ms=900.0, p99_tpot_ms=30.0)
    assert slo.request_limits_ms == {"ttft": 900.0, "tpot": 30.0}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("workload.max_concurrency", 4, "caps the load"),
        ("workload.request_rate", math.inf, "needs traffic"),
        ("plan.schedule", ((0.0, 5.0), (8.0, 9.0)), "keep one"),
        ("plan.prices_per_hour_usd", {"h100": 3.0}, "use one of h100-sxm"),
        ("plan.candidates.gpu", ("h100-sxm", "h100-sxm"), "twice"),
        ("plan.candidates.gpu", ("h1000",), "h1000"),
        ("deployment.replicas", 2, "what the plan finds"),
        ("slo", None, "needs limits"),
        ("acceptance", None, "no acceptance"),
    ],
)
def test_a_plan_that_cannot_be_made_says_why(
    experiment: Experiment, key: str, value: object, said: str
) -> None:
    changed = Experiment.model_validate(with_values(experiment.model_dump(), {key: cast("str", value)}))
    assert any(said in conflict.message for conflict in plan_conflicts(changed))


def test_a_file_without_a_plan_says_so(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    path.write_text(SMALL.partition("plan:")[0])
    with pytest.raises(InputFaults, match="add plan:"):
        Planner(path)


# Candidates


def test_what_cannot_be_had_is_listed_with_the_reason(experiment: Experiment) -> None:
    found = {c.id: c.refusal for c in every(experiment)}
    assert len(found) == 2 * 2 * 2 * 3
    assert "fp8" in found["1 x a100-80gb fp8, plain"]
    assert "3" in found["3 x h100-sxm bf16, eagle3 K = 1"]
    assert found["1 x h100-sxm bf16, eagle3 K = 3"] == ""


def test_limits_on_gpus_limit_the_replicas(experiment: Experiment) -> None:
    found = {c.id: c for c in every(experiment)}
    assert found["1 x a100-80gb bf16, plain"].most_replicas == 12
    assert found["1 x h100-sxm bf16, plain"].most_replicas is None


def test_prices_come_from_the_file_before_the_catalogue(experiment: Experiment) -> None:
    assert experiment.plan is not None
    plan = experiment.plan.model_copy(update={"prices_per_hour_usd": {"h100-sxm": 1.25}})
    found = {c.id: c for c in every(experiment.model_copy(update={"plan": plan}))}
    assert found["1 x h100-sxm bf16, plain"].replica_usd == 1.25
    assert found["1 x a100-80gb bf16, plain"].replica_usd == 2.7


# The share of one replica


@given(st.integers(1, 40), st.floats(0.2, 4.0))
def test_dealing_out_in_turn_multiplies_the_gamma_shape(replicas: int, burstiness: float) -> None:
    assert dealt(burstiness, replicas, "round_robin") == burstiness * replicas


@given(st.integers(1, 40))
def test_random_routing_keeps_poisson_arrivals_poisson(replicas: int) -> None:
    assert math.isclose(dealt(1.0, replicas, "random"), 1.0)


def test_every_nth_gap_of_an_open_loop_has_the_variation_of_its_share() -> None:
    arrivals = open_loop(40_000, 10.0, 1.0, stream(1, Purpose.ARRIVAL))
    for replicas in (1, 3, 8):
        gaps = np.diff(arrivals[::replicas])
        shape = dealt(1.0, replicas, "round_robin")
        assert gaps.std() / gaps.mean() == pytest.approx(shape**-0.5, rel=0.03)


def test_a_share_has_the_rate_of_one_replica_and_the_same_lengths(experiment: Experiment) -> None:
    traffic = Traffic.of(experiment)
    config = every(experiment)[0].config
    tables = [traffic.trial(config, replicas, 0).table() for replicas in (1, 4)]
    assert np.array_equal(tables[0].prompt_tokens, tables[1].prompt_tokens)
    assert tables[1].arrival_s[-1] == pytest.approx(4 * tables[0].arrival_s[-1])


def test_a_recorded_trace_is_dealt_out_in_turn_at_its_own_times(
    experiment: Experiment, tmp_path: Path
) -> None:
    rows = [f"2023-11-16 18:00:{i // 10:02d}.{i % 10}000000,{100 + i},{10 + i % 7}" for i in range(90)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    workload = {"trace": str(trace), "trace_format": "azure", "ignore_eos": True}
    values = cast("dict[str, str]", {"workload": workload, "plan.growth": 2.0})
    changed = Experiment.model_validate(with_values(experiment.model_dump(), values))
    config = every(changed)[0].config
    traffic = Traffic.of(changed.model_copy(update={"serve": config.serve, "workload": config.workload}))
    assert traffic.recorded and traffic.rate == pytest.approx(20.0)
    table = traffic.trial(config, 3, seed=1).table()
    assert table.prompt_tokens.tolist() == list(range(101, 190, 3))
    assert np.diff(table.arrival_s) == pytest.approx(0.15)
    assert len(traffic.trial(config, 3, seed=1, prompts=7).table()) == 7


def test_growth_and_a_schedule_plan_for_the_peak(experiment: Experiment) -> None:
    values = {"plan.schedule": ((0.0, 5.0), (9.0, 20.0)), "plan.growth": 1.5, "workload.request_rate": None}
    changed = Experiment.model_validate(with_values(experiment.model_dump(), cast("dict[str, str]", values)))
    assert Traffic.of(changed).rate == 30.0


def test_longer_outputs_stay_within_the_context(experiment: Experiment) -> None:
    config = every(experiment)[0].config
    plain = Trial(config, 0).table()
    longer = Trial(config, 0, output_factor=1.3).table()
    assert longer.output_tokens.sum() == pytest.approx(1.3 * plain.output_tokens.sum(), rel=0.02)
    assert (longer.prompt_tokens + longer.max_tokens <= 4096).all()


# Verdicts


def figures(values: Sequence[float], share: float = 0.99, **others: float) -> TrialFigures:
    """A run with one limit."""
    limits = {"p99_tpot_ms": Allowed(share, "ttft", 1.0)}
    return TrialFigures(others, {"ttft": np.array(values)}, limits)


@given(st.lists(st.floats(0.0, 3.0), min_size=2, max_size=60), st.integers(1, 59))
def test_the_verdict_on_several_runs_is_that_on_their_requests_together(
    values: list[float], cut: int
) -> None:
    cut = min(cut, len(values) - 1)
    parts = [figures(values[:cut]), figures(values[cut:])]
    assert worst(parts) == worst([figures(values)])


def test_refused_requests_exceed_every_limit() -> None:
    assert worst([figures([0.1, 0.2], **{"ratio:refused requests": 4.0})]) == (4.0, "refused requests")


@given(
    st.lists(st.tuples(st.floats(1, 900), st.floats(1, 90)), min_size=1, max_size=80), st.floats(0.05, 1.0)
)
def test_the_joint_ratio_is_at_most_one_exactly_where_the_share_is_good(
    latencies: list[tuple[float, float]], attainment: float
) -> None:
    over = sorted(max(ttft / 500.0, tpot / 50.0) for ttft, tpot in latencies)
    limits = {"attainment": Allowed(attainment, "attainment", 1.0)}
    ratio, _ = worst([TrialFigures({}, {"attainment": np.array(over)}, limits)])
    over = np.array(over, dtype=np.float32).tolist()
    good = sum(value <= 1.0 for value in over) / len(over)
    at_rank = math.ceil(attainment * (len(over) - 1)) + 1
    assert (ratio <= 1.0) == (sum(value <= 1.0 for value in over) >= at_rank)
    assert ratio > 1.0 or good >= attainment - 1.0 / len(over)


def test_scaled_acceptance_scales_whatever_law_there_is() -> None:
    spec = AcceptanceSpec(conditional_acceptance=0.8, context_multiplier=((100.0, 1.0), (1000.0, 0.5)))
    assert scaled(spec, 0.5).context_multiplier == ((100.0, 0.5), (1000.0, 0.25))
    recorded = AcceptanceSpec(replay=(bytes([1, 1, 0, 1]), bytes([2, 0, 255])))
    assert scaled(recorded, 0.5).replay is None


# Bounds


def test_no_simulated_replica_beats_its_bound(experiment: Experiment) -> None:
    longer = experiment.workload.model_copy(update={"num_prompts": 800})
    experiment = experiment.model_copy(update={"workload": longer})
    traffic = Traffic.of(experiment)
    for candidate in every(experiment):
        if candidate.refusal or candidate.gpu != "h100-sxm" or candidate.k == 1:
            continue
        found = bound(candidate.config, MeanLengths.of(Trial(candidate.config, 0).table()))
        beyond = traffic.scaled(found.rate / traffic.rate)
        assert worst([measure(beyond.trial(candidate.config, 1, 0))])[0] > 1.0


def test_a_limit_below_one_step_is_infeasible_by_closed_form(experiment: Experiment) -> None:
    hopeless = experiment.model_copy(update={"slo": Slo(p99_tpot_ms=0.5)})
    config = every(hopeless)[0].config
    found = bound(config, MeanLengths.of(Trial(config, 0).table()))
    assert found.rate == 0.0 and "TPOT" in found.limit


# From file to page


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Planned, Path]:
    """The small plan, made once, and its folder."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "small.yaml").write_text(SMALL)
    planner = Planner(folder / "small.yaml", (), folder / "out")
    planner.prepare(resume=False)
    found = planner.execute(1, lambda _: None)
    planner.finish()
    return found, folder


def test_the_winner_is_confirmed_against_its_neighbours(planned: tuple[Planned, Path]) -> None:
    this, _ = planned
    assert this.winner is not None and this.winner.high is not None
    assert this.winner.ratio <= 1.0 and judge(this.whole).verdict != "missed"
    assert this.winner.tried[this.winner.high].judged.verdict == "met"
    assert {n.step for n in this.neighbours} == {"gpu", "tp", "dtype", "method", "k", "replicas"}
    assert not [n for n in this.neighbours if n.verdict == BETTER]
    fewer = [n for n in this.neighbours if n.step == "replicas" and n.replicas < this.winner.high]
    assert all(n.verdict in (FAILS, OPEN) for n in fewer)


def test_a_plan_fits_eighty_columns_and_breaks_no_word(planned: tuple[Planned, Path]) -> None:
    with fitting(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        lines = fitted(plan_text(planned[0]), 80).splitlines()
    assert max(map(len, lines)) <= 80
    wide = plan_text(planned[0])
    assert set(" ".join(lines).split()) == set(wide.split())


def test_where_the_spread_is_not_given_the_winner_holds_over_it(planned: tuple[Planned, Path]) -> None:
    this, _ = planned
    assert [end.judged.verdict for end in this.ends] == ["met"]
    assert "with all requests alike" in plan_text(this)


def test_of_those_not_told_apart_only_what_meets_the_slo_is_confirmed(file: Path, tmp_path: Path) -> None:
    planner = Planner(file, (), tmp_path / "out")
    plain = next(c for c in planner.planned.every if not c.k)
    met, open_ = (Entry(plain, Bound(40.0, 1.0, "TPOT"), 1, high) for high in (2, None))
    planner.planned.winner, planner.planned.even = met, [open_]
    asked = []

    class Fake:
        def ask(self, questions: list[object]) -> list[Reply]:
            return []

        def again(self, entry: Entry, precision: object = None) -> Reply:
            asked.append(entry)
            return Reply(Judged("met", 0.5, "p99_tpot_ms"), [], None, 5)

    assert planner._stands(cast("Search", Fake()))
    assert asked == [met]


def test_a_resumed_plan_simulates_nothing_and_writes_the_same_bytes(planned: tuple[Planned, Path]) -> None:
    from specfleet.experiments.plan.write import write_plan

    this, folder = planned
    write_plan(this, folder / "out")
    before = [(folder / "out" / name).read_bytes() for name in ("plan.json", "rollout.md")]
    again = Planner(folder / "small.yaml", (), folder / "out")
    again.prepare(resume=True)
    resumed = again.execute(1, lambda _: None)
    assert resumed.spent == 0
    write_plan(resumed, folder / "out")
    assert [(folder / "out" / name).read_bytes() for name in ("plan.json", "rollout.md")] == before


def test_the_page_has_commands_that_vllm_accepts_and_every_section(planned: tuple[Planned, Path]) -> None:
    from specfleet.experiments.plan.rollout import rollout

    this, _ = planned
    page = rollout(this)
    commands = [
        block.removeprefix("sh\n").rstrip()
        for block in page.split("```")[1::2]
        if block.startswith("sh\nvllm serve")
    ]
    assert commands and all(faults(command) == [] for command in commands)
    assert this.winner is not None and this.winner.candidate.k
    for words in (
        "Measure the baseline first",
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_drafts_total",
        "Kill switch",
        "Watch P99",
        "GiB of weights",
        "measure next",
    ):
        assert words in page
    assert len(page.splitlines()) < 110


def test_drafts_are_switched_off_after_replicas_are_added_only_where_plain_ones_miss_the_slo(
    planned: tuple[Planned, Path],
) -> None:
    from specfleet.experiments.plan.rollout import rollout

    this, _ = planned
    assert this.winner is not None and this.winner.high is not None and this.plain is not None
    for verdict in (BETTER, EVEN, LESS_ROOM, FAILS):
        alike = Neighbour("method", this.plain, this.winner.high, 1.0, verdict)
        page = rollout(replace(this, neighbours=[alike]))
        assert ("nothing has to be added" in page) == (verdict != FAILS)
        assert ("add replicas first" in page) == (verdict == FAILS)


@pytest.mark.parametrize(
    ("engine", "running", "port"),
    [
        ("vllm-0.33", "vllm:num_requests_running", 0),
        ("sglang", "sglang:num_running_reqs", 30000),
        ("trtllm", "", 0),
    ],
)
def test_a_rollout_asks_for_the_figures_that_the_engine_tells(
    planned: tuple[Planned, Path], engine: str, running: str, port: int
) -> None:
    from specfleet.experiments.plan.deploy.watched import watched

    this, _ = planned
    assert this.winner is not None
    config = this.winner.candidate.config
    tells = watched(config.model_copy(update={"serve": config.serve.model_copy(update={"engine": engine})}))
    assert (tells.running, tells.port) == (running, port)
    assert all(query.count("(") == query.count(")") for query in (tells.acceptance_length, tells.p99_s))


def test_plan_json_lists_all_candidates_and_the_reasons(planned: tuple[Planned, Path]) -> None:
    from specfleet.experiments.plan.write import write_plan

    this, folder = planned
    write_plan(this, folder / "out")
    found = json.loads((folder / "out" / "plan.json").read_text())
    assert len(found["candidates"]) == len(this.every)
    assert any("cannot be had" in row["status"] for row in found["candidates"])
    assert found["deployment"]["replicas_needed"] == this.winner.high if this.winner else False
    assert {change["name"] for change in found["sensitivity"]} == {
        "acceptance -20 %",
        "output length +30 %",
        "request rate +25 %",
        "step time +10 %",
        "step time -10 %",
    }
    assert found["capacity"]["binding_resource"]


def test_the_figures_are_drawn(planned: tuple[Planned, Path], tmp_path: Path) -> None:
    from specfleet.experiments.plan.figures import draw_plan

    paths = draw_plan(planned[0], tmp_path)
    assert sorted(path.name for path in paths if path.suffix == ".png") == [
        "best_k.png",
        "cost.png",
        "pareto.png",
        "slo.png",
    ]
    assert all(path.stat().st_size > 1000 for path in paths)


def test_a_plan_that_nothing_meets_exits_with_one(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = plan_command(file, ("slo.p99_tpot_ms=0.5",), 1, tmp_path / "out", plots=False, quiet=True)
    assert code == 1
    assert "No candidate meets the SLO" in capsys.readouterr().out
    assert not (tmp_path / "out" / "rollout.md").exists()


def test_another_folder_is_left_alone(file: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(InputFaults, match="not a folder of `specfleet plan`"):
        Planner(file, (), tmp_path / "mine").prepare(resume=False)


@pytest.mark.parametrize(
    ("limit", "said"), [("p99_tpot_ms", "0.35 of p99_tpot_ms"), ("attainment", "0.35 of its limits")]
)
def test_a_share_of_an_attainment_is_not_said_to_be_attained(limit: str, said: str) -> None:
    assert of_limit(SimpleNamespace(ratio=0.35, limit=limit)) == said
