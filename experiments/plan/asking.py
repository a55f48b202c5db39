"""Questions of a plan: simulated until they are answered, each once, what is found kept on disk."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from specfleet.experiments.plan.seen import Judged, TrialFigures, figure, judge
from specfleet.experiments.plan.traffic import Traffic, Trial
from specfleet.experiments.plan.trials import digest, measure, trial_key
from specfleet.experiments.run.files import FolderFault, write_text
from specfleet.experiments.run.processes import Workers
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.sim.statistics.stopping import Looked, RunLengths, go_on

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Question:
    """Whether so many replicas of an engine meet the SLO.

    Args:
        traffic: what is asked of the deployment.
        config: the engine.
        replicas: that share the traffic.
        seeds: of the replications.
        lengths: how long its simulations may be, in requests; None: as long as the file says.
        whole: simulate all replicas behind the router, and not one at its share.
        precision: half-widths of mean and percentile of the latency that binds, as shares, up to which it
            goes on once it is settled.
        confirms: what was found already, so it does not take a limit as kept near which nothing was seen, if
            longer simulations may see it.
    """

    traffic: Traffic
    config: Experiment
    replicas: int
    seeds: tuple[int, ...]
    lengths: RunLengths | None = None
    whole: bool = False
    precision: tuple[float, float] | None = None
    confirms: bool = False

    def trials(self, prompts: int | None) -> list[Trial]:
        """Returns its simulations, of so many requests a replica."""
        make = self.traffic.whole if self.whole else self.traffic.trial
        return [make(self.config, self.replicas, seed, prompts) for seed in self.seeds]

    @property
    def key(self) -> str:
        """A name that two questions share only if they are the same."""
        how = (self.lengths, self.whole, self.precision, self.confirms)
        return digest(*(trial_key(trial) for trial in self.trials(None)), *how)


@dataclass(frozen=True)
class Reply:
    """What a question found.

    Attributes:
        judged: the verdict.
        runs: the last and longest, a run a seed.
        used: requests of each; None: as the file says.
        spent: simulations made.
    """

    judged: Judged
    runs: list[TrialFigures]
    used: int | None
    spent: int

    def to_json(self) -> str:
        """Returns it as text."""
        judged = dataclasses.asdict(self.judged)
        runs = [run.plain() for run in self.runs]
        return json.dumps({"judged": judged, "used": self.used, "spent": self.spent, "runs": runs}) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Reply:
        """Returns what `to_json` wrote."""
        read = json.loads(text)
        runs = [TrialFigures.of_plain(run) for run in read["runs"]]
        judged = Judged(**{**read["judged"], "taken": tuple(read["judged"]["taken"])})
        return cls(judged, runs, read["used"], read["spent"])


def ask(question: Question) -> Reply:
    """Simulates until the question is answered, or as long as may be."""
    lengths = question.lengths
    if lengths is None:
        runs = [measure(trial) for trial in question.trials(None)]
        return Reply(judge(runs), runs, None, len(runs))
    last: list[tuple[Judged, list[TrialFigures]]] = []

    def look(prompts: int) -> Looked:
        runs = [measure(trial) for trial in question.trials(prompts)]
        found = judge(runs, take=not question.confirms or prompts >= lengths.most)
        if last and {last[0][0].verdict, found.verdict} == {"met", "missed"}:
            why = "a longer run says otherwise than a shorter one"
            found = dataclasses.replace(found, verdict="not settled", longer=1.0, why=why)
        last[:] = [(found, runs)]
        longer = found.longer
        if found.verdict == "met" and question.precision:
            longer = max(longer, imprecise(runs, found.limit, *question.precision))
        return Looked(longer)

    _, used, looks = go_on(look, lengths)
    found, runs = last[0]
    return Reply(found, runs, used, looks * len(runs))


def imprecise(runs: Sequence[TrialFigures], limit: str, mean: float, percentile: float) -> float:
    """Returns how many times as long runs have to be to know the latency that binds; 0: it is known."""
    allowed = runs[0].limits.get(limit)
    if allowed is None or allowed.series not in ("ttft", "tpot", "e2el"):
        return 0.0
    longer = 0.0
    asked = {f"mean_{allowed.series}_ms": mean, f"p{100 * allowed.share:g}_{allowed.series}_ms": percentile}
    for key, width in asked.items():
        found = figure(runs, key)
        if found is not None and (found.short or found.relative > width):
            longer = max(longer, 1.1 * (found.relative / width) ** 2, 1.0)
    return longer


class Laboratory:
    """Runs trials and answers questions, each once: what a folder holds is read, not simulated again.

    Args:
        folder: of what was found, a file each.
        workers: where they run.

    Attributes:
        spent: simulations made.
        asked: simulations that a plan without a folder would have made.
    """

    def __init__(self, folder: Path, workers: Workers) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.spent = self.asked = 0
        self._trials: dict[str, TrialFigures] = {}
        self._answers: dict[str, Reply] = {}
        self._counted: set[str] = set()
        self._workers = workers

    def run(self, trials: Sequence[Trial]) -> list[TrialFigures]:
        """Returns the figures of each trial, in order; the new ones are simulated side by side."""
        keys = [trial_key(trial) for trial in trials]
        missing = self._missing(keys, trials, self._trials, TrialFigures.from_json)
        for key, found in zip(missing, self.each(measure, list(missing.values())), strict=True):
            self.spent += 1
            write_text(self.folder / f"{key}.json", found.to_json())
            self._trials[key] = found
        self.asked += len(set(keys) - self._counted)
        self._counted |= set(keys)
        return [self._trials[key] for key in keys]

    def ask(self, questions: Sequence[Question]) -> list[Reply]:
        """Returns the answer to each question, in order; the new ones are looked into side by side."""
        keys = [question.key for question in questions]
        missing = self._missing(keys, questions, self._answers, Reply.from_json)
        for key, found in zip(missing, self.each(ask, list(missing.values())), strict=True):
            self.spent += found.spent
            write_text(self.folder / f"{key}.json", found.to_json())
            self._answers[key] = found
        self.asked += sum(self._answers[key].spent for key in set(keys) - self._counted)
        self._counted |= set(keys)
        return [self._answers[key] for key in keys]

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Returns what `work` makes of each item, in order, side by side where there are processes."""
        return self._workers.in_order(work, items)

    def _missing(
        self,
        keys: Sequence[str],
        items: Sequence[Item],
        known: dict[str, Result],
        read: Callable[[str], Result],
    ) -> dict[str, Item]:
        """Returns what is neither known nor in the folder, by key; reads what is."""
        missing: dict[str, Item] = {}
        for key, item in zip(keys, items, strict=True):
            if key in missing or key in known:
                continue
            path = self.folder / f"{key}.json"
            if path.is_file():
                known[key] = _read(path, read)
            else:
                missing[key] = item
        return missing


def _read(path: Path, read: Callable[[str], Result]) -> Result:
    """Returns what was kept; FolderFault if the file is damaged."""
    try:
        return read(path.read_text())
    except (ValueError, KeyError, TypeError) as error:
        raise FolderFault(path, f"is damaged: {error}; remove it, it will be simulated again") from None
