"""Where a choice pays against the baseline over a load: up to here, not from there, not settled between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specfleet.experiments.run.band import LEAST, MOST, UNSETTLED_BY
from specfleet.experiments.run.gains import MEAN_TPOT, P99_TPOT, THROUGHPUT
from specfleet.experiments.run.results import Row, as_number, is_number, number
from specfleet.sim.statistics.verdict import Verdict

QUESTIONS = {THROUGHPUT: "throughput", MEAN_TPOT: "mean TPOT", P99_TPOT: "P99 TPOT"}
BESIDE = ("_ci95", "_low", "_high", "_verdict", LEAST, MOST, UNSETTLED_BY)
"""Ends of the columns that say how well a ratio is known."""
ANSWERS: dict[str, Verdict] = {"pays": "pays", "does not": "does not", "not settled": "not settled"}


def questions(rows: Sequence[Row]) -> dict[str, str]:
    """Returns the columns of ratios to the baseline and what each asks; those of traffic classes last."""
    found = dict(QUESTIONS)
    for key in dict.fromkeys(key for row in rows for key in row):
        if key.startswith("speedup:class:") and not key.endswith(BESIDE):
            _, _, name, figure = key.split(":")
            found[key] = f"{'mean' if figure.startswith('mean') else 'P99'} TPOT of {name}"
    return found


def judged(row: Row, question: str) -> Verdict | None:
    """Returns the verdict on a point; None where the question is not asked of it.

    An open loop that serves all that comes is not asked about its throughput.
    """
    return ANSWERS.get(str(row.get(f"{question}_verdict"))) if is_number(row.get(question)) else None


def interval(row: Row, question: str) -> tuple[float, float] | None:
    """Returns the 95 % interval of a ratio; None where nothing bounds it."""
    low, high = row.get(f"{question}_low"), row.get(f"{question}_high")
    return (as_number(low), as_number(high)) if is_number(low) and is_number(high) else None


@dataclass(frozen=True)
class Reach:
    """At which of the tested loads a choice pays.

    Attributes:
        paying, losing, unsettled: tested loads, rising.
    """

    paying: tuple[float, ...]
    losing: tuple[float, ...]
    unsettled: tuple[float, ...]

    @classmethod
    def of(cls, tested: Sequence[tuple[float, Verdict]]) -> Reach:
        """Sorts loads by the verdict at each."""
        at = {
            answer: tuple(sorted(x for x, found in tested if found == answer)) for answer in ANSWERS.values()
        }
        return cls(at["pays"], at["does not"], at["not settled"])

    @property
    def throughout(self) -> bool:
        """Whether it pays at every load tested."""
        return bool(self.paying) and not self.losing and not self.unsettled

    @property
    def stops_between(self) -> tuple[float, float] | None:
        """The last load at which it pays and the first after it at which it does not; None without both."""
        after = [x for x in self.losing if self.paying and x > self.paying[0]]
        if not after:
            return None
        return max(x for x in self.paying if x < after[0]), after[0]

    def sentence(self) -> str:
        """Says it in words, such as `pays up to 32, stops between 32 and 128`."""
        if not self.paying and not self.losing:
            return "is not settled at any load tested"
        if not self.paying:
            where = f"from {self.losing[0]:g} on" if self.unsettled else "at any load tested"
            if self.unsettled and max(self.unsettled) > self.losing[0]:
                where = f"at {_listed(self.losing)}"
            return f"does not pay {where}{self._unsettled(self.unsettled)}"
        stops = self.stops_between
        first, last = self.paying[0], self.paying[-1]
        begins = self.losing and self.losing[0] < first
        if stops is None:
            said = f"pays only from {first:g}" if begins else f"pays up to {last:g}"
            return said + self._unsettled(self.unsettled)
        said = f"pays from {first:g} to {stops[0]:g}" if begins else f"pays up to {stops[0]:g}"
        said += f", stops between {stops[0]:g} and {stops[1]:g}"
        again = [x for x in self.paying if x > stops[1]]
        if again:
            said += f" (pays again from {again[0]:g})"
        return said + self._unsettled([x for x in self.unsettled if not stops[0] < x < stops[1]])

    def _unsettled(self, loads: Sequence[float]) -> str:
        return f", not settled at {_listed(loads)}" if loads else ""


def _listed(loads: Sequence[float]) -> str:
    return ", ".join(f"{x:g}" for x in loads)


def reach(rows: Sequence[Row], x: str, question: str) -> Reach | None:
    """Returns where the points of one line pay; None where the question is asked of none."""
    tested = [(number(row, x), found) for row in rows if (found := judged(row, question))]
    return Reach.of(tested) if tested else None
