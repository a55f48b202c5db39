"""The answer of a run in one sentence: yes, no, or not settled; up to where; with which choice."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from specfleet.experiments.run.gains import MEAN_TPOT, P99_TPOT, THROUGHPUT
from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.words.band import STATE_IT, banded, by_spread, more
from specfleet.experiments.words.names import noun
from specfleet.experiments.words.values import named, same, text
from specfleet.experiments.words.verdict import QUESTIONS, Reach, interval, judged

FIGURES = {THROUGHPUT: "output_throughput", MEAN_TPOT: "mean_tpot_ms", P99_TPOT: "p99_tpot_ms"}
K = "serve.speculative_config.num_speculative_tokens"


@dataclass(frozen=True)
class Compared:
    """Points that differ from the baseline, over a load or at one, all else equal.

    Attributes:
        rows: all of them, the baseline's among them.
        baseline: axis -> the value compared with.
        load: the axis along which it is asked; None where it has one value, or there is none.
        where: what holds for all rows, such as `gpu = h100-sxm`; may be empty.
    """

    rows: tuple[Row, ...]
    baseline: Mapping[str, object]
    load: str | None
    where: str = ""

    @property
    def others(self) -> list[Row]:
        """The points that are compared."""
        return [row for row in self.rows if not self._plain(row)]

    def plain(self, row: Row) -> Row | None:
        """Returns the point that a row is compared with."""
        return self._plain_at.get(row[self.load] if self.load else None)

    @cached_property
    def _plain_at(self) -> dict[object, Row]:
        """The points that others are compared with, the first at each load; at None where that is one."""
        found: dict[object, Row] = {}
        for row in filter(self._plain, self.rows):
            found.setdefault(row[self.load] if self.load else None, row)
        return found

    def label(self, row: Row) -> str:
        """Returns what a row chose, such as `K = 3`."""
        return ", ".join(named(key, row[key]) for key in self.baseline)

    @property
    def subject(self) -> str:
        """What is asked about: speculation, or another choice."""
        key, value = next(iter(self.baseline.items()))
        if "speculative_config" in key:
            return "speculation"
        return f"a {noun(key)} other than {named(key, value).rpartition(' = ')[2]}"

    @property
    def asked(self) -> list[str]:
        """The ratios that decide: throughput where it is judged, else mean TPOT, and P99 TPOT."""
        judges = [q for q in QUESTIONS if any(judged(row, q) for row in self.others)]
        return [q for q in judges if q != MEAN_TPOT or THROUGHPUT not in judges]

    def _plain(self, row: Row) -> bool:
        return all(same(row[key], value) for key, value in self.baseline.items())


def compared(
    rows: Sequence[Row], axes: Sequence[str], x: str | None, baseline: Mapping[str, object]
) -> list[Compared]:
    """Arranges a run's points by what is neither compared nor the load; empty where nothing is compared.

    Args:
        rows: a row a point.
        axes: the keys that are swept.
        x: what lies horizontally in the figures; the load if it is an axis of numbers.
        baseline: axis -> the value that the others are compared with.
    """
    if not baseline or not rows or not all(key in row for key in baseline for row in rows):
        return []
    load = load_axis(rows, axes, x, baseline)
    settings = [key for key in axes if key not in baseline and key != load]
    values = [list({repr(row[key]): row[key] for row in rows}.values()) for key in settings]
    several = load is not None and len({row[load] for row in rows}) > 1
    by_setting: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        by_setting.setdefault(tuple(_alike(row[key]) for key in settings), []).append(row)
    found = []
    for chosen in itertools.product(*values):
        fixed = list(zip(settings, chosen, strict=True))
        mine = tuple(by_setting.get(tuple(map(_alike, chosen)), ()))
        where = [named(key, value) for key, value in fixed]
        if load and mine and not several:
            where.append(load_text(load, mine[0][load]))
        this = Compared(mine, baseline, load if several else None, ", ".join(where))
        if this.asked:
            found.append(this)
    return found


def _alike(value: object) -> str:
    """A value of an axis as a key: one for values that are the `same`."""
    text = str(value)
    try:
        return repr(float(text))
    except ValueError:
        return text


def load_axis(
    rows: Sequence[Row], axes: Sequence[str], x: str | None, baseline: Mapping[str, object]
) -> str | None:
    """Returns the axis of numbers along which it is asked up to where a choice pays."""
    wanted = [x] if x in axes else []
    wanted += [key for key in axes if key.startswith("workload.")]
    numbers = (
        k for k in wanted if k is not None and k not in baseline and all(is_number(r[k]) for r in rows)
    )
    return next(numbers, None)


def lead(groups: Sequence[Compared], at: str = "") -> str:
    """Returns the answer in one sentence; empty where nothing is compared.

    Args:
        groups: as `compared` gives them.
        at: the load where it is not swept, such as `12 requests/s`.
    """
    if len(groups) == 1:
        return sentence(groups[0], at)
    if not groups:
        return ""
    answers = [_word(group) for group in groups]
    counts = {word: answers.count(word) for word in ("yes", "in part", "no", "not settled")}
    told = ", ".join(f"{word} in {n}" for word, n in counts.items() if n)
    return f"Does {groups[0].subject} pay? Over {len(groups)} settings: {told}."


def sentence(group: Compared, at: str = "") -> str:
    """Returns the answer of one group."""
    return _over_loads(group) if group.load else _at_one_load(group, at)


def best_reach(group: Compared, question: str) -> Reach | None:
    """Returns where some choice pays: not where none does; else it is not settled."""
    assert group.load is not None
    tested = []
    for load in sorted({number(row, group.load) for row in group.rows}):
        found = [judged(row, question) for row in group.others if number(row, group.load) == load]
        verdicts = [verdict for verdict in found if verdict is not None]
        if "pays" in verdicts:
            tested.append((load, verdicts[verdicts.index("pays")]))
        elif verdicts:
            rest = [verdict for verdict in verdicts if verdict != "does not"]
            tested.append((load, rest[0] if rest else verdicts[0]))
    return Reach.of(tested) if tested else None


def _reaches(group: Compared) -> dict[str, Reach]:
    found = {question: best_reach(group, question) for question in group.asked}
    return {question: reach for question, reach in found.items() if reach is not None}


def _over_loads(group: Compared) -> str:
    reaches = _reaches(group)
    load, subject = noun(str(group.load)), group.subject
    said = []
    for place, (question, reach) in enumerate(reaches.items()):
        who = subject if place == 0 else "it"
        tested = len(reach.paying) + len(reach.losing) + len(reach.unsettled)
        some = tested < len({row[str(group.load)] for row in group.rows})
        where = ", where one side saturates," if question == THROUGHPUT and some else ""
        told = f"pays at every {load} tested" if reach.throughout and not some else reach.sentence()
        unit = f" ({load})" if place == 0 and not reach.throughout else ""
        gains = _at_best(group, question) if place == 0 and reach.paying else ""
        said.append(f"on {QUESTIONS[question]}{where} {who} {told}{unit}{gains}")
    where = f"{group.where}: " if group.where else ""
    return f"{where}{_yes(reaches)}: {'; '.join(said)}."


def _yes(reaches: Mapping[str, Reach]) -> str:
    """Yes or no, over all questions and loads."""
    found = list(reaches.values())
    if not any(reach.paying for reach in found):
        if not any(reach.unsettled for reach in found):
            return "No"
        return "No, as far as it is settled" if any(reach.losing for reach in found) else "Not settled"
    if all(reach.throughout for reach in found):
        return "Yes"
    against = min((x for reach in found for x in (*reach.losing, *reach.unsettled)), default=inf)
    both = [x for reach in found for x in reach.paying if x < against]
    if both:
        return f"Yes, up to {max(both):g}"
    return "Yes and no" if any(reach.losing for reach in found) else "In part"


def _at_best(group: Compared, question: str) -> str:
    """The highest ratio at the lowest and at the highest load."""
    loads = sorted({number(row, str(group.load)) for row in group.rows})
    told = []
    for load in dict.fromkeys((loads[0], loads[-1])):
        rows = [r for r in group.others if number(r, str(group.load)) == load and judged(r, question)]
        if rows:
            best = max(rows, key=lambda row: number(row, question))
            told.append(f"{number(best, question):.2f} times with {group.label(best)} at {load:g}")
    return f", at best {' and '.join(told)}"


def _at_one_load(group: Compared, at: str) -> str:
    answer, best = _choice(group)
    label = group.label(best)
    if answer == "yes":
        said = f"yes, {'switch on' if group.subject == 'speculation' else 'take'} {label}: "
    elif answer == "in part":
        said = f"{'yes and no' if any(_loses(best, q) for q in group.asked) else 'in part'}, {label}: "
    elif answer == "no":
        off = "leave it off" if group.subject == "speculation" else "stay with the baseline"
        said = f"no, {off}: {label} comes closest with "
    else:
        said = f"not settled, {label}: "
    said += ", ".join(_change(group, best, question) for question in reversed(group.asked))
    open_yet = [q for q in group.asked if judged(best, q) == "not settled"]
    if any(by_spread(best, question) for question in open_yet):
        said += f"; {STATE_IT}"
    elif answer == "not settled":
        said += f"; {more([best])} or replications settle it"
    where = ", ".join(part for part in (group.where, at) if part)
    return f"At {where}: {said}." if where else f"{said[0].upper()}{said[1:]}."


def chosen(group: Compared) -> Row:
    """Returns the point that the answer at one load is about."""
    return _choice(group)[1]


def _word(group: Compared) -> str:
    if not group.load:
        return _choice(group)[0]
    word = _yes(_reaches(group)).lower()
    return "no" if word.startswith("no,") else "in part" if word not in ("yes", "no", "not settled") else word


def _choice(group: Compared) -> tuple[str, Row]:
    """The answer at one load, and the point it is about."""
    main = THROUGHPUT if THROUGHPUT in group.asked else P99_TPOT if P99_TPOT in group.asked else MEAN_TPOT
    rows = [row for row in group.others if is_number(row.get(main))]
    best = {row["point"]: number(row, main) for row in rows}
    paying = [row for row in rows if any(judged(row, q) == "pays" for q in group.asked)]
    open_yet = {row["point"] for row in paying for q in group.asked if judged(row, q) == "not settled"}
    losing = {row["point"] for row in paying for q in group.asked if _loses(row, q)}
    whole = [row for row in paying if row["point"] not in open_yet | losing]
    for answer, chosen in (("yes", whole), ("in part", paying)):
        if chosen:
            return answer, max(chosen, key=lambda row: best[row["point"]])
    settled = all(judged(row, q) == "does not" for row in rows for q in group.asked)
    return "no" if settled else "not settled", max(rows, key=lambda row: best[row["point"]])


def _loses(row: Row, question: str) -> bool:
    """Whether a ratio is below 1 for certain."""
    found = interval(row, question)
    return judged(row, question) == "does not" and found is not None and found[1] < 1.0


def _change(group: Compared, row: Row, question: str) -> str:
    """A figure before and after, with the interval of the ratio where that is not settled."""
    figure, plain = FIGURES[question], group.plain(row)
    unit = "tok/s" if question == THROUGHPUT else "ms"
    after = banded(row, figure, _amount)
    said = f"{QUESTIONS[question]} {after} {unit}"
    if plain is not None and is_number(plain.get(figure)):
        before = banded(plain, figure, _amount)
        said = f"{QUESTIONS[question]} {before} -> {after} {unit}"
    bounds = interval(row, question)
    if judged(row, question) == "not settled":
        said += f" (not settled: ratio {bounds[0]:.2f} to {bounds[1]:.2f})" if bounds else " (not settled)"
    return said


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def load_text(key: str, value: object) -> str:
    """Returns a load in words, such as `12 requests/s` or `concurrency 64`."""
    return f"{text(value)} requests/s" if key.endswith("request_rate") else f"{noun(key)} {text(value)}"


def load_said(experiment: Experiment) -> str:
    """Returns the load of a file in words where it is one number and not swept; else nothing."""
    workload, axes = experiment.workload, experiment.sweep.axes
    if any(key.startswith("workload.") for key in axes):
        return ""
    if workload.max_concurrency is not None:
        return load_text("workload.max_concurrency", workload.max_concurrency)
    rate = workload.request_rate
    return load_text("workload.request_rate", rate) if rate is not None and rate < inf else ""


def not_asked(experiment: Experiment) -> str:
    """Says how to ask whether speculation pays, where a file has a drafter and nothing beside it."""
    speculative = experiment.serve.speculative_config
    k = speculative.num_speculative_tokens if speculative is not None else None
    if not k or any("speculative_config" in key for key in experiment.sweep.axes):
        return ""
    return (
        "Whether speculation pays is not said: nothing without it was run. To ask, sweep K from 0 on: "
        f"'sweep.axes.{K}=[0, {k}]'."
    )
