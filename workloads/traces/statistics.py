"""What recorded traffic looks like: how uneven its arrivals are, what its prompts share, its sessions."""

from __future__ import annotations

import numpy as np

from specfleet.workloads.requests import FloatArray, IntArray, RequestTable
from specfleet.workloads.traces.report import Trace

WINDOWS_S = (1.0, 10.0, 60.0)
"""Lengths of the windows in which arrivals are counted, seconds."""
FEWEST_WINDOWS = 5
"""Below so many windows a variance says nothing."""


def dispersion(arrival_s: FloatArray, window_s: float) -> float | None:
    """Variance over mean of the arrivals in whole windows (1 for Poisson); None with too few of them."""
    windows = int(float(arrival_s[-1]) // window_s) if len(arrival_s) else 0
    if windows < FEWEST_WINDOWS:
        return None
    counts = np.bincount((arrival_s / window_s).astype(np.int64), minlength=windows)[:windows]
    return float(counts.var() / counts.mean()) if counts.any() else None


def reused_share(table: RequestTable) -> float | None:
    """Share of the prompt tokens in recorded blocks that came before, as with an unbounded cache.

    A block counts where all before it in its prompt are known too. None where no blocks are recorded.
    """
    if table.segment_offset is None or table.segment_stream is None or table.segment_tokens is None:
        return None
    offset, streams, tokens = (
        column.tolist() for column in (table.segment_offset, table.segment_stream, table.segment_tokens)
    )
    longest: dict[int, int] = {}
    reused = 0
    for row in range(len(table)):
        known = True
        for at in range(offset[row], offset[row + 1]):
            stream, count = streams[at], tokens[at]
            before = longest.get(stream, 0) if stream < 0 else 0
            reused += min(before, count) if known else 0
            known = known and before >= count
            if stream < 0:
                longest[stream] = max(before, count)
    return reused / int(table.prompt_tokens.sum())


def rank_correlation(a: IntArray, b: IntArray) -> float | None:
    """Spearman's, ties at their mean rank; None where one of the two is constant."""
    x, y = _ranks(a), _ranks(b)
    if not len(x) or x.std() == 0 or y.std() == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _ranks(values: IntArray) -> FloatArray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2.0)[place], dtype=np.float64)


def statistics_text(trace: Trace) -> str:
    """A few lines behind a report: dispersion, how lengths go together, reuse, classes, turns."""
    table, report = trace
    lines = []
    if report.timed and report.recorded_s is not None:
        found = [(window, dispersion(report.recorded_s, window)) for window in WINDOWS_S]
        said = ", ".join(f"{value:.2f} in {window:g} s" for window, value in found if value is not None)
        lines.append(f"burst     index of dispersion {said or 'not known: too short'} (Poisson: 1)")
    correlation = rank_correlation(table.prompt_tokens, table.output_tokens)
    if correlation is not None:
        lines.append(f"lengths   rank correlation of prompt and output {correlation:+.2f}")
    share = reused_share(table)
    if share is not None:
        size = report.block_size
        what = f"blocks of {size} tokens" if size else "as contexts accumulate, answers left out"
        lines.append(f"reuse     {share:.1%} of prompt tokens came before: unbounded cache, {what}")
    if len(report.classes) > 1:
        named = sorted(report.classes.items(), key=lambda one: -one[1])[:8]
        lines.append("classes   " + ", ".join(f"{name} {count:,}" for name, count in named))
    return "\n".join([*lines, *_turns(trace)])


def _turns(trace: Trace) -> list[str]:
    """Requests by session, where some have one."""
    session = trace.report.session
    turns = np.zeros(0) if session is None else np.bincount(session[session >= 0])
    turns = turns[turns > 0]
    if not len(turns):
        return []
    p90 = np.percentile(turns, 90)
    return [f"sessions  {len(turns):,}, turns mean {turns.mean():.1f}, p90 {p90:.0f}, max {turns.max():.0f}"]
