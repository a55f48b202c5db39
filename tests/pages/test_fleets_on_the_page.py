"""Replicas that fail and clients that give up: the page says what the command prints, and its figures are of
what happened."""

from __future__ import annotations

import html
from pathlib import Path

import numpy as np
import pytest
from report_runs import simulated

from specfleet.experiments.figures.overtime import columns_of, over_s
from specfleet.experiments.page.data import read
from specfleet.experiments.page.html import MOST_ROWS, TableCell, table
from specfleet.experiments.page.write import report_page
from specfleet.experiments.run.results import Row
from specfleet.experiments.words.costs.ends import MANY
from specfleet.experiments.words.costs.outages import failures_said
from specfleet.experiments.words.costs.patience import patience_said
from specfleet.experiments.words.values import on_average

FILE = """\
serve: {model: llama-3.1-8b-instruct, gpu: h100-sxm, max_model_len: 4096, max_num_seqs: 16}
workload:
  {input_len: 300, output_len: 80, request_rate: 30, num_prompts: 60, patience: {timeout_s: {exponential: 1}}}
deployment:
  replicas: 2
  router: least_outstanding
  failures:
    at: [{replica: 1, at_s: 0.5, for_s: 1}]
    detect_s: 0.2
    retry: {most: 1, backoff_s: 0.1, keep_partial: true}
slo: {ttft_ms: 500, tpot_ms: 20}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which some requests are served, some lost and some given up."""
    return simulated(tmp_path_factory.mktemp("fleet"), text=FILE)


def test_the_page_says_of_failures_and_clients_what_is_printed(folder: Path) -> None:
    run = read(folder)
    page = html.unescape(report_page(run)).replace("\u00a0", " ")
    said = [*failures_said(run.rows, []), *patience_said(run.rows, [])]
    assert len(said) == 3 and all(sentence in page for sentence in said)
    assert "thrown away" not in said[0], "who threw tokens away is said once, of both"
    assert "by clients or with replicas" in said[1]


def test_every_request_is_over_when_it_ended_whoever_ended_it(folder: Path) -> None:
    (path,) = (folder / "points").glob("*/requests.csv")
    requests = columns_of(path)
    over = over_s(requests)
    assert np.isfinite(over).all() and (over >= requests["sent_ms"] / 1e3).all()
    gone = np.isfinite(requests["gave_up_ms"])
    assert gone.any() and (over[gone] == requests["gave_up_ms"][gone] / 1e3).all()
    served = requests["status"] == 0
    assert (over[served] == requests["last_chunk_ms"][served] / 1e3).all()


def test_a_table_of_many_rows_ends_and_says_where_the_others_are() -> None:
    rows = [[TableCell(str(row), float(row))] for row in range(MOST_ROWS + 1)]
    shown = table("All points", ["point"], rows)
    assert shown.count("<tr>") == MOST_ROWS + 1, "with the headings"
    assert "the first 1,000 of 1,001 rows, summary.csv has every point" in shown
    assert "the first" not in table("All points", ["point"], rows[:-1])


def test_of_many_points_those_at_the_ends_are_said() -> None:
    rows: list[Row] = [
        {
            "x": float(place),
            "gave_up": 1.0 if place == 7 else 2.0 + place,
            "gave_up_share": place / 100,
            "gave_up_unanswered": 0.0,
            "client_retries": 0.0,
            "wasted_tokens": 1.0,
            "wasted_seat_share": 0.0,
        }
        for place in range(MANY + 1)
    ]
    each, few = patience_said(rows[:MANY], ["x"]), patience_said(rows, ["x"])
    assert len(each) == MANY + 1 and len(few) == 4
    assert few[0].startswith(f"Of {MANY + 1} points those with the least and the most")
    assert "x = 0:" in few[1] and f"x = {MANY}:" in few[2]
    assert "1 request was given up" in each[7] and "1 output token was thrown away" in each[7]


@pytest.mark.parametrize(
    ("mean", "said"), [(1.0, "1 failure"), (2.0, "2 failures"), (4.0 / 3.0, "1.3 failures on average")]
)
def test_a_mean_over_seeds_is_no_whole_number(mean: float, said: str) -> None:
    assert on_average(mean, "failure") == said
