"""Traffic classes in words: who gains in P99 TPOT and who loses, and the bill, who pays for whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specfleet.experiments.run.bill import LATENCIES
from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.answer import Compared, best_reach, chosen
from specfleet.experiments.words.names import noun
from specfleet.experiments.words.summary import classes_of, grouped
from specfleet.experiments.words.table import Column
from specfleet.experiments.words.values import named
from specfleet.experiments.words.verdict import interval, judged

HEADS = {"ttft": "P99 TTFT ms", "tpot": "P99 TPOT ms", "e2el": "P99 E2E ms"}
SAID = {"ttft": "P99 TTFT", "tpot": "P99 TPOT", "e2el": "P99 E2E"}
FORMS = {"ttft": "{:,.0f}", "tpot": "{:.1f}", "e2el": "{:,.0f}"}


def class_answer(groups: Sequence[Compared]) -> str:
    """Returns what each traffic class has of it; empty where there is one, or settings are several."""
    if len(groups) != 1:
        return ""
    (group,) = groups
    told = [_told(group, name) for name in classes_of(group.rows)]
    said = [each for each in told if each]
    if not said:
        return ""
    where = "" if group.load else f", {group.label(chosen(group))}"
    return f"By class{where}, P99 TPOT: {'; '.join(said)}."


def _told(group: Compared, name: str) -> str:
    question = f"speedup:class:{name}:p99_tpot_ms"
    if group.load is None:
        return _gained(chosen(group), name, question)
    found = best_reach(group, question)
    if found is None:
        return ""
    if found.throughout:
        return f"{name} gains at every {noun(group.load)} tested"
    return f"for {name} it {found.sentence()} ({noun(group.load)})"


def _gained(row: Row, name: str, question: str) -> str:
    """One class at one point."""
    verdict, bounds = judged(row, question), interval(row, question)
    if verdict is None:
        return ""
    ratio = number(row, question)
    if verdict == "not settled":
        said = f", {bounds[0]:.2f} to {bounds[1]:.2f}" if bounds else ""
        return f"{name} is not settled ({ratio:.2f} times{said})"
    if verdict == "pays":
        return f"{name} gains {ratio:.2f} times"
    lost = bounds is not None and bounds[1] < 1.0
    return f"{name} loses ({ratio:.2f} times)" if lost else f"{name} gains nothing ({ratio:.2f} times)"


def bill_table(rows: Sequence[Row], axes: Sequence[str], lines: str | None) -> str | None:
    """Returns a row a point, class that drafts and class that is looked at; None without a bill."""
    mine: list[Row] = []
    cells: list[list[object]] = []
    for row in rows:
        for whose, who in pairs_of(row):
            mine.append(row)
            cells.append([whose, who, *of_pair(row, whose, who)])
    if not cells:
        return None
    columns = [Column("drafts of", left=True), Column("seen by", left=True)]
    for latency in LATENCIES:
        columns += [Column(HEADS[latency], left=True), Column("x", left=True, name=f"{SAID[latency]}, x")]
    head = (
        "Bill by class: P99 without -> with the drafts of a class, on the same requests and luck; above 1 is "
        "paid for them (95 % intervals):"
    )
    return f"{head}\n\n{grouped(mine, cells, columns, axes, lines)}"


def pairs_of(row: Row) -> list[tuple[str, str]]:
    """Returns whose drafts, and who is looked at, of the entries of a row."""
    keys = (key.split(":") for key in row if key.startswith("bill:"))
    return list(dict.fromkeys((whose, who) for _, whose, who, _ in keys))


def of_pair(row: Row, whose: str, who: str) -> list[str]:
    """Returns the cells of one class's drafts and one that looks at them."""
    return [cell for latency in LATENCIES for cell in _cells(row, whose, who, latency)]


def _key(whose: str, who: str, latency: str) -> str:
    return f"bill:{whose}:{who}:p99_{latency}_ms"


def _cells(row: Row, whose: str, who: str, latency: str) -> list[str]:
    key, form = _key(whose, who, latency), FORMS[latency].format
    if not is_number(row.get(key)):
        return ["", ""]
    before, after = (form(number(row, f"{key}_{side}")) for side in ("without", "with"))
    return [f"{before} -> {after}", ratio_text(row, key)]


def ratio_text(row: Row, key: str) -> str:
    """Returns a ratio with its interval, where it has one."""
    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    bounds = f" ({low:.2f} to {high:.2f})" if is_number(low) and is_number(high) else ""
    return f"{number(row, key):.2f}{bounds}"


def bill_sentences(rows: Sequence[Row], axes: Sequence[str]) -> list[str]:
    """Returns who pays for whom at each point that has a bill."""
    return [f"{_where(row, axes)}{_said(row)}." for row in rows if pairs_of(row)]


def _where(row: Row, axes: Sequence[str]) -> str:
    told = ", ".join(named(axis, row.get(axis, "")) for axis in axes)
    return f"{told}: " if told else ""


def _said(row: Row) -> str:
    others = [(whose, who) for whose, who in pairs_of(row) if whose != who]
    return "; ".join(clause for whose, who in others for clause in _pair(row, whose, who))


def _pair(row: Row, whose: str, who: str) -> Iterator[str]:
    """What one class has of another's drafts."""
    sides: dict[str, list[str]] = {}
    for latency in LATENCIES:
        key = _key(whose, who, latency)
        if is_number(row.get(key)):
            told = f"{SAID[latency]} x {ratio_text(row, key)}"
            sides.setdefault(str(row.get(f"{key}_side")), []).append(told)
    if "pays" in sides:
        yield f"{who} pays for {whose}'s drafts: {', '.join(sides['pays'])}"
    if "gains" in sides:
        yield f"{who} gains by {whose}'s drafts: {', '.join(sides['gains'])}"
    if set(sides) == {"neither"}:
        yield f"{who} neither pays for {whose}'s drafts nor gains by them"
    elif "pays" not in sides and "gains" not in sides:
        yield f"whether {who} pays for {whose}'s drafts is not settled"
