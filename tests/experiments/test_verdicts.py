"""Verdicts: what pays, up to where, and when nothing may be said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from report_runs import judged

from specfleet.experiments.load.baseline import plain_baseline
from specfleet.experiments.load.config import load
from specfleet.experiments.run.gains import MEAN_TPOT, P99_TPOT, THROUGHPUT, gains
from specfleet.experiments.run.results import Row, number
from specfleet.experiments.run.run import Run
from specfleet.experiments.run.runner import run_task
from specfleet.experiments.run.traffic import Served, state
from specfleet.experiments.words.answer import compared, lead
from specfleet.experiments.words.run import run_text
from specfleet.experiments.words.verdict import Reach
from specfleet.sim.statistics.series import F64
from specfleet.sim.statistics.verdict import Verdict

LOAD, K = "workload.max_concurrency", "serve.speculative_config.num_speculative_tokens"
TESTED = st.dictionaries(
    st.integers(1, 40).map(float), st.sampled_from(["pays", "does not", "not settled"]), min_size=1
)
SMALL = """
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  speculative_config:
    {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}
acceptance: {by_position: [0.7, 0.5, 0.36], concentration: 18, source: a test}
workload: {input_len: 200, output_len: 60, max_concurrency: 4, num_prompts: 40}
sweep: {axes: {serve.speculative_config.num_speculative_tokens: [0, 3]}}
"""


@given(TESTED)
def test_a_choice_stops_paying_between_a_load_that_pays_and_the_next_that_does_not(
    tested: dict[float, Verdict],
) -> None:
    reach = Reach.of(list(tested.items()))
    assert sorted((*reach.paying, *reach.losing, *reach.unsettled)) == sorted(tested)
    assert reach.throughout == (set(tested.values()) == {"pays"})
    stops = reach.stops_between
    if stops is None:
        assert all(x < min(reach.paying, default=41.0) for x in reach.losing) or not reach.paying
        return
    low, high = stops
    assert tested[low] == "pays" and tested[high] == "does not" and low < high
    assert all(verdict == "not settled" for x, verdict in tested.items() if low < x < high)


@given(TESTED)
def test_a_sentence_names_every_load_at_which_nothing_is_settled_but_those_where_it_stops(
    tested: dict[float, Verdict],
) -> None:
    reach = Reach.of(list(tested.items()))
    said = reach.sentence()
    if not reach.unsettled:
        assert "not settled" not in said
    elif reach.paying or reach.losing:
        low, high = reach.stops_between or (1.0, 0.0)
        named = said.partition("not settled at ")[2]
        wanted = [f"{x:g}" for x in reach.unsettled if not low < x < high]
        assert named == ", ".join(wanted)


def served(tpot_s: F64, sent_s: F64, tokens: int = 101) -> Served:
    """Requests with these times per token, their first token after 0.1 s."""
    n = len(tpot_s)
    first = sent_s + 0.1
    lengths = np.full(n, float(tokens))
    number = np.arange(n, dtype=np.float64)
    return Served(number, np.zeros(n), lengths, sent_s, first, first + tpot_s * (tokens - 1))


def poisson(rate: float, n: int = 4000, seed: int = 1) -> F64:
    """Times of arrival."""
    return np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate, n))


@given(st.floats(0.5, 3.0), st.integers(0, 50))
def test_a_common_factor_is_found_exactly_however_requests_differ(factor: float, seed: int) -> None:
    plain_s = np.random.default_rng(seed).lognormal(-4.0, 0.5, 4000)
    sent = poisson(5.0)
    row = gains([served(plain_s / factor, sent)], [served(plain_s, sent)], open_loop=True)
    wanted = "pays" if factor > 1.02 + 1e-9 else "does not" if factor < 1.02 - 1e-9 else None
    for question in (MEAN_TPOT, P99_TPOT):
        assert row[f"{question}_low"] == pytest.approx(factor) == row[f"{question}_high"]
    assert wanted is None or row[f"{MEAN_TPOT}_verdict"] == wanted
    assert wanted is None or row[f"{P99_TPOT}_verdict"] in (wanted, "not settled")  # of few beyond the P99


def test_a_gain_below_the_least_is_none() -> None:
    plain_s = np.random.default_rng(0).lognormal(-4.0, 0.5, 4000)
    sent = poisson(5.0)
    runs = [served(plain_s / 1.05, sent)], [served(plain_s, sent)]
    assert gains(*runs)[f"{MEAN_TPOT}_verdict"] == "pays"
    assert gains(*runs, least_gain=0.06)[f"{MEAN_TPOT}_verdict"] == "does not"


def test_few_requests_settle_nothing() -> None:
    plain_s = np.random.default_rng(0).lognormal(-4.0, 0.5, 30)
    sent = poisson(5.0, 30)
    row = gains([served(plain_s / 2.0, sent)], [served(plain_s, sent)])
    assert row[f"{P99_TPOT}_verdict"] == "not settled"


def test_an_open_loop_that_keeps_up_has_no_verdict_on_throughput_and_no_gain_from_the_drain() -> None:
    """Without the window the last requests, 20 s against 10, would make it a gain of some 2 per cent."""
    sent = poisson(10.0)
    slow, fast = served(np.full(4000, 0.2), sent), served(np.full(4000, 0.1), sent)
    assert state([slow]) == state([fast]) == "stationary"
    row = gains([fast], [slow], open_loop=True)
    assert f"{THROUGHPUT}_verdict" not in row
    assert row[THROUGHPUT] == pytest.approx(1.0, abs=0.01)
    assert row[f"{MEAN_TPOT}_verdict"] == "pays"


def test_an_open_loop_in_which_one_side_saturates_is_judged_by_what_is_served() -> None:
    n = 4000
    sent = poisson(12.0)
    plain = served(np.full(n, 0.01), sent)
    ends = np.maximum.accumulate(np.maximum(plain.last_s, np.arange(n) / 10.0))
    behind = Served(plain.request_id, plain.class_id, plain.output_tokens, sent, ends - 1.0, ends)
    assert state([behind]) == "saturated"
    row = gains([plain], [behind], open_loop=True, saturated=True)
    assert row[f"{THROUGHPUT}_verdict"] == "pays"
    assert row[THROUGHPUT] == pytest.approx(1.2, rel=0.05)


@pytest.mark.parametrize(
    ("key", "values", "found"),
    [
        (K, (3, 0, 5), 0),
        ("serve.speculative_config", (None, {"method": "eagle3"}), None),
        (
            "serve.speculative_config",
            ({"num_speculative_tokens": 3}, {"num_speculative_tokens": 0}),
            {"num_speculative_tokens": 0},
        ),
    ],
)
def test_plain_decoding_on_an_axis_is_the_baseline(key: str, values: Sequence[object], found: object) -> None:
    assert plain_baseline({LOAD: (1, 2), key: values}) == {key: found}


@pytest.mark.parametrize("axes", [{K: (0,)}, {K: (1, 3)}, {LOAD: (0, 1)}, {}])
def test_without_plain_decoding_beside_something_else_there_is_no_baseline(
    axes: dict[str, tuple[object, ...]],
) -> None:
    assert plain_baseline(axes) is None


def test_a_file_that_names_a_baseline_keeps_it() -> None:
    text = SMALL.replace("[0, 3]", "[0, 2, 3]") + f"report: {{baseline: {{{K}: 2}}}}\n"
    assert load(yaml.safe_load(text)).experiment.report.baseline == {K: 2}
    assert load(yaml.safe_load(SMALL)).experiment.report.baseline == {K: 0}


def point(k: int, ratio: float, load: float = 12.0) -> Row:
    """A point whose ratio of P99 TPOT is known to 0.01."""
    row: Row = {"point": f"{load},{k}", K: k, LOAD: load, "mean_tpot_ms": 10.0 / ratio}
    row |= {"p99_tpot_ms": 25.0 / ratio, "output_throughput": 1000.0}
    return row | (judged(P99_TPOT, ratio) if k else {})


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ((1.2, 1.6), "At 12 requests/s: yes, switch on K = 5: P99 TPOT 25.0 -> 15.6 ms."),
        (
            (0.9, 0.7),
            "At 12 requests/s: no, leave it off: K = 3 comes closest with P99 TPOT 25.0 -> 27.8 ms.",
        ),
        (
            (1.02, 0.7),
            "At 12 requests/s: not settled, K = 3: P99 TPOT 25.0 -> 24.5 ms (not settled: ratio 1.01 to "
            "1.03); more requests (workload.num_prompts) or replications settle it.",
        ),
    ],
)
def test_a_sweep_over_k_alone_is_answered_in_a_sentence(ratios: tuple[float, float], said: str) -> None:
    rows = [point(0, 1.0), point(3, ratios[0]), point(5, ratios[1])]
    assert lead(compared(rows, (K,), K, {K: 0}), "12 requests/s") == said


def test_a_gain_beside_what_is_lost_or_not_settled_is_no_plain_yes() -> None:
    plain = {**point(0, 1.0), **judged(THROUGHPUT, 1.0)}
    for tail, word in ((1.5, "yes, switch on"), (1.025, "in part,"), (0.8, "yes and no,")):
        rows = [plain, {**point(3, tail), **judged(THROUGHPUT, 1.3), "output_throughput": 1300.0}]
        said = lead(compared(rows, (K,), K, {K: 0}), "concurrency 8")
        assert said.startswith(f"At concurrency 8: {word} K = 3: P99 TPOT 25.0 -> ")
        assert "throughput 1,000 -> 1,300 tok/s" in said


def test_up_to_where_it_pays_is_in_the_first_words() -> None:
    gain = {1.0: 2.0, 8.0: 1.3, 64.0: 0.9}
    rows = [point(k, ratio if k else 1.0, x) for x, ratio in gain.items() for k in (0, 3)]
    said = lead(compared(rows, (LOAD, K), LOAD, {K: 0}))
    assert said.startswith(
        "Yes, up to 8: on P99 TPOT speculation pays up to 8, stops between 8 and 64 (concurrency)"
    )


def test_an_interrupted_run_says_so_first_and_concludes_nothing(tmp_path: Path) -> None:
    run = Run(yaml.safe_load(SMALL), out=tmp_path / "run")
    todo = run.prepare(resume=False)
    run_task(todo[0])
    said = run_text(run, run.summary())
    assert said.startswith("Interrupted: 1 of 2 simulations are whole, and nothing is concluded from them")
    assert "pays" not in said and "switch on" not in said
    run_task(todo[1])
    whole = run_text(run, run.summary())
    assert whole.startswith("At concurrency 4: ") and "K = 3" in whole.partition("\n")[0]


@pytest.mark.parametrize("num_prompts", [15, 150])
def test_overload_is_said_however_short_the_run_and_a_safe_load_never(
    tmp_path: Path, num_prompts: int
) -> None:
    data = yaml.safe_load(SMALL) | {"sweep": {"axes": {"workload.request_rate": [2, 400]}}}
    data["workload"] = {"input_len": 200, "output_len": 60, "num_prompts": num_prompts}
    run = Run(data, out=tmp_path / "run")
    for task in run.prepare(resume=False):
        run_task(task)
    safe, crowded = run.summary()
    assert (safe["state"], crowded["state"]) == ("stationary", "saturated")
    assert 2.0 < number(safe, "capacity_per_s") < 400.0
    said = run_text(run, [safe, crowded])
    assert "Saturated from request rate 400 on" in said and "bound by" in said
    assert "request rate 2" not in said


def test_a_crowded_engine_serves_no_more_than_the_closed_form_and_little_less(tmp_path: Path) -> None:
    """At most a fifth less, with a limit on seats and without; the limit is the one that binds."""
    data = yaml.safe_load(SMALL) | {"sweep": {"axes": {"serve.max_num_seqs": [8, 256]}}}
    data["workload"] = {"input_len": 200, "output_len": 200, "num_prompts": 1200, "request_rate": 400}
    run = Run(data, out=tmp_path / "run")
    for task in run.prepare(resume=False):
        run_task(task)
    few, many = run.summary()
    for row in (few, many):
        assert 0.8 < number(row, "served_per_s") / number(row, "capacity_per_s") < 1.0
    assert str(few["binds"]).startswith("seats")


def test_equal_requests_stay_equal_however_long_the_run() -> None:
    sent_s: F64 = np.arange(20_000, dtype=np.float64) * 1.7

    def alone(step_s: float) -> Served:
        """One user, equal answers: times kept to a nanosecond, as a run's requests are."""
        n, tokens = len(sent_s), 250.0
        first_s = np.round(sent_s + 0.037, 9)
        last_s = np.round(first_s + (tokens - 1.0) * step_s, 9)
        return Served(
            np.arange(n, dtype=np.float64), np.zeros(n), np.full(n, tokens), sent_s, first_s, last_s
        )

    plain, fast = alone(0.00672345678), alone(0.0048)
    assert len(np.unique(plain.tpot_s)) == 1
    assert gains([plain], [plain])[f"{P99_TPOT}_verdict"] == "does not"
    assert gains([fast], [plain])[f"{P99_TPOT}_verdict"] == "pays"
