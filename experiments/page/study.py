"""`specfleet report` of a plan's or a break-even search's folder: what it says, as one page to hand on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specfleet.experiments.page.html import (
    Html,
    TableCell,
    folded,
    join,
    listed,
    page,
    picture,
    section,
    table,
    tag,
)
from specfleet.experiments.page.sections import definitions
from specfleet.experiments.run.files import read_object, write_page
from specfleet.experiments.run.folder import broken_law, located, manifest_of
from specfleet.experiments.run.results import is_number
from specfleet.experiments.schema.faults import UserError
from specfleet.experiments.words.band import assumed

ANSWERS = {"plan": "plan.json", "breakeven": "breakeven.json"}
"""Kind of folder -> the file with everything that was found."""

TITLES = {"plan": "plan", "breakeven": "break-even"}
SAID = ("answer", "verdicts")
"""What stands as sentences above."""
LONG = 60
"""Rows of a table; what has more is left to the file."""


def kind_of(folder: Path) -> str:
    """Returns which command made a folder: `run`, `plan` or `breakeven`."""
    place = located(folder)
    return str((manifest_of(place) or {}).get("kind", "run"))


def write_study(folder: Path, path: Path | None = None) -> Path:
    """Writes the page of a plan or a break-even search and returns its path.

    Args:
        folder: of the study.
        path: of the page; None is report.html in the folder.

    Raises:
        UserError: if there is no answer in the folder, or a simulation broke a law.
    """
    place = located(folder)
    if (law := broken_law(manifest_of(place) or {})) is not None:
        raise UserError(f"{folder} {law}")
    kind = kind_of(folder)
    answer = place / ANSWERS[kind]
    if not answer.is_file():
        raise UserError(f"{folder} holds no {answer.name}: the {TITLES[kind]} has not ended")
    target = path or place / "report.html"
    write_page(target, _page(place, kind, read_object(answer)))
    return target


def _page(folder: Path, kind: str, found: Mapping[str, object]) -> str:
    name = str(found.get("name", folder.name))
    said = found.get("answer")
    sentences = (
        [said] if isinstance(said, str) else [str(one) for one in said] if isinstance(said, list) else []
    )
    beside = found.get("verdicts")
    sentences += [str(one) for one in beside] if isinstance(beside, list) else []
    plots = {path.stem: path for ending in ("png", "svg") for path in (folder / "plots").glob(f"*.{ending}")}
    figures = [plots[name] for name in sorted(plots)]
    rollout = folder / "rollout.md"
    sections = {"answer": "Answer", "figures": "Figures", "found": "What was found", "rollout": "Rollout"}
    if not figures:
        del sections["figures"]
    if not rollout.is_file():
        del sections["rollout"]
    lead = [tag("p", sentences[0], class_="lead"), listed(sentences[1:])] if sentences else []
    body = join(
        [
            tag("header", tag("h1", name), tag("p", f"A {TITLES[kind]} by Specfleet", class_="setting")),
            section(
                "answer",
                sections["answer"],
                *lead,
                *([] if lead else _facts(found, ("break_even", "best_k"))),
            ),
            section("figures", sections["figures"], *map(picture, figures)) if figures else None,
            section(
                "found",
                sections["found"],
                *_facts(found, [key for key in found if key not in SAID]),
            ),
            section(
                "rollout", sections["rollout"], tag("pre", rollout.read_text(encoding="utf-8"), tabindex="0")
            )
            if rollout.is_file()
            else None,
        ]
    )
    return page(f"{name} · Specfleet", body, sections, {}, None, images=True)


def _facts(found: Mapping[str, object], keys: Sequence[str]) -> Iterator[Html]:
    """Values by name: single ones together, tables of records, and nested ones folded."""
    single = {key: found[key] for key in keys if key in found and _plain(found[key])}
    if single:
        yield definitions({key.replace("_", " "): _text(value) for key, value in single.items()})
    for key in keys:
        value = found.get(key)
        if not value or key in single:
            continue
        title = key.replace("_", " ")
        if isinstance(value, Mapping):
            yield folded(title, *_facts(value, [str(inner) for inner in value]))
        elif isinstance(value, list) and all(isinstance(row, Mapping) for row in value):
            yield folded(title, _records(title, value), open_=key in ("break_even", "neighbours"))
        elif isinstance(value, list):
            yield folded(title, listed(assumed([_text(one) for one in value])))


def _records(title: str, rows: Sequence[Mapping[str, object]]) -> Html:
    keys = [
        key
        for key in dict.fromkeys(k for row in rows for k in row)
        if all(_plain(row.get(key)) for row in rows)
    ]
    cells = [[TableCell(_text(row.get(key)), _number(row.get(key))) for key in keys] for row in rows[:LONG]]
    more = f", the first {LONG} of {len(rows)}" if len(rows) > LONG else ""
    return table(f"{title}{more}", [key.replace("_", " ") for key in keys], cells)


def _plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _number(value: object) -> float | None:
    return float(value) if is_number(value) else None


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
