"""`specfleet breakeven`: the acceptance from which speculation pays, at each load and draft length."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from specfleet.experiments.breakeven.figures import draw_breakeven
from specfleet.experiments.breakeven.question import COUNTED, Breakeven
from specfleet.experiments.breakeven.report import breakeven_facts, breakeven_text, write_breakeven
from specfleet.experiments.run.cluster.crew import crew
from specfleet.experiments.run.processes import WorkersGone
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.words.as_json import json_text
from specfleet.experiments.words.width import say


def breakeven_command(
    file: Path,
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    out: Path | None = None,
    tolerance: float = 0.01,
    plots: bool = True,
    quiet: bool = False,
    as_json: bool = False,
    resume: bool = False,
    cluster: str | None = None,
) -> int:
    """Searches, prints the answer, and writes breakeven.json, breakeven.csv and plots/.

    Returns:
        The exit code: 0 done, 1 some search failed, 130 interrupted.

    Raises:
        InputFaults: with all that is wrong with the file or the options.
    """
    this = Breakeven(file, overrides, out, tolerance)
    reporter = Reporter(this.total, quiet, COUNTED)
    with crew(jobs, cluster, reporter.say) as workers:
        this.prepare(resume)
        for notice in this.loaded.notices:
            reporter.say(f"note: {notice}")
        try:
            this.execute(workers, reporter)
        except KeyboardInterrupt:
            print("interrupted: what is searched is kept; go on with --resume", file=sys.stderr)
            return 130
        except WorkersGone as gone:
            print(f"{gone}; what is searched is kept: go on with --resume", file=sys.stderr)
            return 1
    if this.broken_law is not None:
        this.finish()
        print(f"{this.broken_law}; nothing is said of the others: {this.folder}", file=sys.stderr)
        return 1
    if any(k for _, k, _ in this.found):
        if as_json:
            print(json_text({"folder": str(this.folder)} | breakeven_facts(this)))
        else:
            say(breakeven_text(this))
        write_breakeven(this)
        if plots:
            draw_breakeven(this)
        this.finish()
        if not as_json:
            print(f"results: {this.folder}")
    if this.failures:
        print(f"{len(this.failures)} searches failed: {this.failures[0][1]}", file=sys.stderr)
        return 1
    return 0
