"""vLLM's reports of speculation, read back into the process that made them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from specfleet.experiments.schema.blocks.acceptance import Process
from specfleet.experiments.tools.counts import Measured, from_log, from_prometheus, from_requests
from specfleet.sim.speculation.acceptance import Acceptance, AcceptanceSpec
from specfleet.sim.speculation.fit import concentration, log_likelihood, successes_and_failures

CODE_EDIT = (0.74, 0.57, 0.43, 0.33, 0.27)
RATE = " ".join(("acceptance", "rate"))


def log_line(length: float, accepted: int, drafted: int, rates: str) -> str:
    """One line as vLLM writes it."""
    return (
        "(APIServer pid=1) INFO 05-21 21:11:56 [metrics.py:101] SpecDecoding metrics: Mean acceptance "
        f"length: {length:.2f}, Accepted throughput: 3.87 tokens/s, Drafted throughput: 5.72 tokens/s, "
        f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, Per-position {RATE}: {rates}, "
        f"Avg Draft {RATE}: 67.7%"
    )


SCRAPE = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}
vllm:spec_decode_num_drafts_total{{engine="1",model_name="m"}} 100.0
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} 9999.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} 9999.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {first}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="1",model_name="m",position="0"}} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} {second}
vllm:spec_decode_num_drafts_created{{engine="0",model_name="m"}} 1.7e+09
"""


def histograms(spec: AcceptanceSpec, requests: int, tokens: int, k: int = 5) -> list[list[int]]:
    """Rounds by accepted drafts, of requests that each write `tokens` tokens."""
    drawing = Acceptance(spec, k, seed=3)
    found = []
    for request in range(requests):
        accepted = np.frombuffer(drawing.accepted(request, 10, tokens), np.uint8)
        rounds = int(np.searchsorted(np.cumsum(1 + accepted.astype(np.int64)), tokens)) + 1
        found.append(np.bincount(accepted[:rounds], minlength=k + 1).tolist())
    return found


def test_a_log_line_is_its_positions() -> None:
    found = from_log(log_line(3.03, 337, 498, "0.837, 0.669, 0.524"))
    assert found.by_position == (0.837, 0.669, 0.524)
    assert found.rounds == 166 and found.concentration is None
    assert 1 + sum(found.by_position) == pytest.approx(3.03, abs=5e-3)


def test_lines_of_a_log_count_by_their_rounds_and_empty_ones_not_at_all() -> None:
    text = "\n".join(
        [
            "Engine 000: Avg prompt throughput: 0.0 tokens/s",
            log_line(2.2, 1800, 3000, "0.800, 0.400"),
            log_line(math.nan, 0, 0, "nan, nan"),
            log_line(1.6, 600, 2000, "0.400, 0.200"),
        ]
    )
    found = from_log(text)
    assert found.by_position == pytest.approx((0.64, 0.32))
    assert found.rounds == 2500 and "2 lines" in found.source


def test_the_older_order_of_the_line_is_read_too() -> None:
    line = (
        f"SpecDecoding metrics: Draft {RATE}: 60.0%, Mean acceptance length: 2.20, Accepted: 120 tokens, "
        f"Drafted: 200 tokens, Per-position {RATE}: 0.800, 0.400"
    )
    assert from_log(line).by_position == (0.8, 0.4)


def test_counters_are_summed_over_engines_and_start_where_the_first_scrape_ended() -> None:
    end = SCRAPE.format(drafts=900.0, first=640.0, second=300.0)
    assert from_prometheus(end).by_position == pytest.approx((0.7, 0.3))
    start = SCRAPE.format(drafts=400.0, first=240.0, second=100.0)
    since = from_prometheus(end, start)
    assert since.by_position == pytest.approx((0.8, 0.4)) and since.rounds == 500


def test_counters_without_the_suffix_are_read_too() -> None:
    text = SCRAPE.format(drafts=900.0, first=640.0, second=300.0).replace("_total{", "{")
    assert from_prometheus(text).by_position == pytest.approx((0.7, 0.3))


@pytest.mark.parametrize("asked", [6.0, 18.0, 60.0])
def test_the_spread_between_requests_is_found_again(asked: float) -> None:
    spec = AcceptanceSpec(by_position=CODE_EDIT, concentration=asked)
    lines = [
        json.dumps({"id": i, "metrics": {"speculative_decoding": {"acceptance_histogram": h}}})
        for i, h in enumerate(histograms(spec, requests=500, tokens=250))
    ]
    found = from_requests("\n".join(lines))
    assert found.by_position == pytest.approx(CODE_EDIT, rel=0.03)
    assert found.concentration == pytest.approx(asked, rel=0.25)


def test_requests_all_alike_are_found_alike() -> None:
    spec = AcceptanceSpec(by_position=CODE_EDIT)
    found = from_requests(json.dumps([{"acceptance_histogram": h} for h in histograms(spec, 300, 200)]))
    assert found.concentration is not None and found.concentration > 300
    assert from_requests(json.dumps({"acceptance_histogram": [3, 1, 2]})).concentration is None


def test_the_likelihood_of_one_request_is_that_of_its_rounds() -> None:
    accepted, stopped = successes_and_failures([4, 3, 2])
    assert (accepted, stopped) == ([5, 2], [4, 3])
    expected = 5 * math.log(0.6) + 4 * math.log(0.4) + 2 * math.log(0.5) + 3 * math.log(0.5)
    one = (np.array([accepted]), np.array([stopped]))
    assert log_likelihood(math.inf, (0.6, 0.3), *one) == pytest.approx(expected, abs=1e-3)
    with pytest.raises(ValueError, match="at least two requests"):
        concentration((0.6, 0.3), *one)


def test_a_detailed_report_does_not_take_drafts_that_were_not_made_for_rejections() -> None:
    detailed = {"per_step_accepted": [2, 0, 1, 1], "per_step_drafted": [2, 2, 1, 2], "num_spec_tokens": 2}
    found = from_requests(json.dumps({"metrics": {"speculative_decoding": detailed}}))
    assert found.by_position == (0.75, 0.25) and found.rounds == 4


def test_what_is_read_is_an_acceptance_block() -> None:
    block = Measured("a log", (0.7, 0.4), 1000, 17.96).block()
    assert block == {"source": "a log", "by_position": [0.7, 0.4], "concentration": 18.0}
    process = Process.model_validate({**block, "by_position": (0.7, 0.4)})
    assert process.by_position == (0.7, 0.4)
    assert Measured("a log", (0.7,), 10, math.inf).block()["concentration"] == math.inf
    assert "concentration" not in Measured("a log", (0.7,), 10).block()


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (from_log, "nothing here", "SpecDecoding metrics"),
        (
            from_log,
            log_line(2, 10, 20, "0.8, 0.2") + "\n" + log_line(2, 10, 20, "0.8"),
            "lines of 2 and of 1 drafts",
        ),
        (from_prometheus, "up 1\n", "no drafts counted"),
        (from_requests, "{}", "no request reports"),
        (from_requests, "{}\n{", "line 2 is no JSON"),
        (
            from_requests,
            '[{"acceptance_histogram": [1, 2]}, {"acceptance_histogram": [1, 2, 3]}]',
            r"different num_spec_tokens \[1, 2\]",
        ),
    ],
)
def test_a_report_that_says_nothing_is_refused(read: object, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(text)  # type: ignore[operator]
