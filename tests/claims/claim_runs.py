"""Runs a claim's preset as `specfleet run` does and says what came out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specfleet.experiments.run.results import Row, number
from specfleet.experiments.run.run import Run
from specfleet.experiments.run.runner import Task, run_tasks
from specfleet.experiments.words.claims import Verdict, judge

PRESETS = Path(__file__).parents[2] / "experiments" / "presets" / "claims"


@dataclass(frozen=True)
class Outcome:
    """The verdicts on a preset's claim, in its order, and the summary they rest on."""

    verdicts: list[Verdict]
    rows: list[Row]

    @property
    def missed(self) -> list[str]:
        """What did not come out as claimed, nor as the file marks it."""
        return [verdict.sentence() for verdict in self.verdicts if not verdict.known]

    def figure(self, name: str, **where: object) -> float:
        """A figure of the only point whose axes, named by their last part, have these values."""
        rows = [row for row in self.rows if all(_axis(row, key) == value for key, value in where.items())]
        assert len(rows) == 1, f"{len(rows)} points with {where}"
        return number(rows[0], name)


def _axis(row: Row, end: str) -> object:
    return next(value for key, value in row.items() if key.rpartition(".")[2] == end)


def outcome(preset: str, folder: Path, *overrides: str) -> Outcome:
    """Runs a preset of `presets/claims` with changes and holds it against its claim."""
    run = Run(PRESETS / f"{preset}.yaml", overrides, folder / "run")
    for _ in run_tasks(run.prepare(resume=False), 1, lambda _: None, _raise):
        pass
    claim = run.loaded.experiment.claim
    rows = run.summary()
    return Outcome(judge(claim, rows) if claim else [], rows)


def _raise(task: Task, error: BaseException) -> None:
    raise error
