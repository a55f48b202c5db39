"""Questions of a plan: simulated until they are answered, each once, what is found kept on disk."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from specfleet.experiments.plan.heavier import heavier
from specfleet.experiments.plan.seen import Judged, TrialFigures, figure, judge
from specfleet.experiments.plan.traffic import Traffic, Trial
from specfleet.experiments.plan.trials import digest, measure, trial_key
from specfleet.experiments.point.bounds import Bound
from specfleet.experiments.run.files import FolderFault, write_text
from specfleet.experiments.run.processes import Workers
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.words.values import rounded
from specfleet.sim.statistics.interval import CONFIDENCE
from specfleet.sim.statistics.stopping import Looked, RunLengths, go_on

Item = TypeVar("Item")
Result = TypeVar("Result")

PORTION = 16_000
"""Requests of the longest single run."""
CONFIRMING = 12_500
"""Requests of each run that confirms."""
PART = 7_919
"""Between the seeds of the parts of a run."""
EARLY = 0.98
"""Confidence of a look that is not the last."""
RARE = 0.25
"""Share of what may be beyond a limit that may come under a heavier load than any that was simulated."""


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
        confirms: what was found already, on seeds that had no part in it, for an engine of this bound: see
            `confirm`.
    """

    traffic: Traffic
    config: Experiment
    replicas: int
    seeds: tuple[int, ...]
    lengths: RunLengths | None = None
    whole: bool = False
    precision: tuple[float, float] | None = None
    confirms: Bound | None = None

    def trials(self, prompts: int | None, part: int = 0) -> list[Trial]:
        """Returns its simulations, one a seed, of so many requests a replica.

        Args:
            prompts: requests; None: as the file says.
            part: other numbers give further simulations of the same kind.
        """
        make = self.traffic.whole if self.whole else self.traffic.trial
        return [make(self.config, self.replicas, seed + PART * part, prompts) for seed in self.seeds]

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
        used: requests of each; None: as the file says. Longer runs were of several parts, a run each: first
            the first parts of all seeds.
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


class _Runs:
    """The simulations of a question, each made once.

    Args:
        question: whose.
    """

    def __init__(self, question: Question) -> None:
        self._question = question
        self._found: dict[tuple[int, int], list[TrialFigures]] = {}

    @property
    def spent(self) -> int:
        """Simulations made."""
        return sum(map(len, self._found.values()))

    def of(self, prompts: int, parts: int) -> list[TrialFigures]:
        """Returns so many parts of so many requests a seed, part after part."""
        for part in range(parts):
            if (prompts, part) not in self._found:
                trials = self._question.trials(prompts, part)
                self._found[prompts, part] = [measure(trial) for trial in trials]
        return [run for part in range(parts) for run in self._found[prompts, part]]


def ask(question: Question) -> Reply:
    """Simulates until the question is answered, or as long as may be.

    Up to `PORTION` requests each look is a run of its own, so that a queue that fills slowly is seen to fill.
    From there on further runs of that length are added, and what was simulated is not simulated again; what
    meets the SLO then is not looked at once more, as what is to be bought is confirmed on seeds of its own.
    """
    lengths = question.lengths
    if lengths is None:
        runs = [measure(trial) for trial in question.trials(None)]
        return Reply(judge(runs), runs, None, len(runs))
    if question.confirms is not None:
        return confirm(question, lengths, question.confirms)
    made, portion = _Runs(question), PORTION // question.replicas if question.whole else PORTION
    last: list[tuple[Judged, list[TrialFigures], int]] = []

    def look(prompts: int) -> Looked:
        parts = max(min(math.ceil(prompts / portion), lengths.most // portion), 1)
        each = prompts if parts == 1 and lengths.most < 2 * portion else min(prompts, portion)
        runs = made.of(each, parts)
        found = judge(runs)
        if last and {last[0][0].verdict, found.verdict} == {"met", "missed"}:
            why = "a longer run says otherwise than a shorter one"
            found = dataclasses.replace(found, verdict="not settled", longer=1.0, why=why)
        last[:] = [(found, runs, each)]
        return Looked(found.longer, hopeless=found.verdict == "met" and prompts >= portion)

    go_on(look, lengths)
    return Reply(*last[0], made.spent)


def confirm(question: Question, lengths: RunLengths, bound: Bound) -> Reply:
    """Simulates until it is told from the values beyond the limits alone whether an answer stands.

    All seeds together, part after part, each twice as many as before. A look that is not the last must be
    clear with `EARLY`, so that all looks together are as seldom wrong as one. Only the last may take a limit
    as kept that is far off (`far_within`). Neither that, nor an early look, says that the SLO is met where
    more than a part (`RARE`) of what may be beyond a limit comes under a heavier load than was simulated.

    Args:
        question: with seeds that had no part in what was found.
        lengths: of the question; the last look has half of the longest run a seed.
        bound: of the engine.
    """
    made, each = _Runs(question), min(CONFIRMING, lengths.most)
    most, parts = max(lengths.most // (2 * each), 1), 1
    while True:
        runs, last = made.of(each, parts), parts >= most
        found = judge(runs, take=last, confidence=CONFIDENCE if last else EARLY)
        if found.verdict == "met" and (found.taken or not last):
            share = heavier(lambda part: question.trials(each, part), parts, bound)
            if share > RARE * min(allowed.beyond for allowed in runs[0].limits.values()):
                met = f"{rounded(100 * share, 2)} % of further requests come"
                why = f"{met} under a heavier load than was simulated"
                found = dataclasses.replace(found, verdict="not settled", longer=1.0, why=why)
        if last or not (found.longer or _imprecise(question, found, runs)):
            return Reply(found, runs, each, made.spent)
        parts = min(2 * parts, most)


def _imprecise(question: Question, found: Judged, runs: Sequence[TrialFigures]) -> float:
    if found.verdict != "met" or not question.precision:
        return 0.0
    return imprecise(runs, found.limit, *question.precision)


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
