"""The table that a serving benchmark prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.tools.read import read_tool

RATE = " ".join(("acceptance", "rate"))
TABLE = """\
tip: install termplotlib and gnuplot to plot the metrics
============ Serving Benchmark Result ============
Successful requests:                     80
Maximum request concurrency:             8
Benchmark duration (s):                  30.00
Total input tokens:                      40000
Total generated tokens:                  20000
Output token throughput (tok/s):         666.00
---------------Time to First Token----------------
Mean TTFT (ms):                          60.77
P99 TTFT (ms):                           120.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          9.50
---------------Inter-token Latency----------------
Mean ITL (ms):                           20.10
---------------Speculative Decoding---------------
Acceptance length:                       2.20
Drafts:                                  9000
Draft tokens:                            18000
Accepted tokens:                         10800
  Position 0:                            70.00
  Position 1:                            50.00
==================================================
"""


def test_a_table_among_other_text_is_read(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(TABLE + TABLE.replace("concurrency:             8", "concurrency:             16"))
    reading = read_tool(path)
    assert reading.format == "bench-table"
    assert [(one.max_concurrency, one.drafts) for one in reading.results] == [(8, 2), (16, 2)]
    assert reading.results[0].per_position_acceptance_rates == (0.7, 0.5)
    assert reading.results[0].numbers["mean_itl_ms"] == 20.1


def test_a_table_of_sglang_keeps_its_itl_to_itself_and_a_cut_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    head = "Backend:                                 sglang\nTotal generated tokens (retokenized):    19999\n"
    path.write_text(TABLE.replace("Successful", f"{head}Successful"))
    (found,) = read_tool(path).results
    assert "mean_itl_ms" not in found.numbers and found.numbers["mean_tpot_ms"] == 9.5
    path.write_text(TABLE[:150])
    with pytest.raises(InputFaults, match=r"out.txt:2: its table lacks total_output_tokens"):
        read_tool(path)
