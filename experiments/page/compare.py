"""`specfleet compare A B --html PATH`: two runs side by side as a page, differences with their intervals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specfleet.experiments.page.data import Finished, point_name, read
from specfleet.experiments.page.html import Html, TableCell, join, page, section, table, tag
from specfleet.experiments.page.sections import definitions, points_table
from specfleet.experiments.run.compare import Difference, compare, pairs_of_points
from specfleet.experiments.run.files import write_page
from specfleet.experiments.run.results import Row, read_results
from specfleet.experiments.schema.yamlfile import read_yaml
from specfleet.experiments.words.band import STATE_IT
from specfleet.experiments.words.compare import BAND, IDENTICAL
from specfleet.experiments.words.names import name_and_unit

MAIN = ("mean_tpot_ms", "p99_tpot_ms")
"""Figures that the sentence at the top speaks of."""

NOT_A_SETTING = ("name", "sweep", "report", "claim")
"""Blocks that do not change what is simulated at a point."""


def write_comparison(a: Path, b: Path, path: Path) -> Path:
    """Writes the page of two runs and returns its path.

    Raises:
        FileNotFoundError, NotComparable: when they cannot be compared.
    """
    text = comparison_page(a, b)
    write_page(path, text)
    return path


def comparison_page(a: Path, b: Path) -> str:
    """Returns the page that compares two runs."""
    found = compare(a, b)
    runs = read(a), read(b)
    names = _point_names(runs)
    sections = {
        "answer": "Answer",
        "differences": "Differences",
        "sides": "Side by side",
        "settings": "Settings that differ",
        "versions": "Versions and seeds",
    }
    body = join(
        [
            tag("header", tag("h1", "A and B compared"), *_titles(runs)),
            tag(
                "section",
                tag("p", comparison_sentence(found, names), class_="lead"),
                id="answer",
                aria_label="Answer",
            ),
            section("differences", sections["differences"], *_differences(found, names)),
            section("sides", sections["sides"], _side_by_side(runs)),
            section("settings", sections["settings"], _settings(runs)),
            _versions(runs),
        ]
    )
    return page("A and B compared · Specfleet", body, sections, _payload(found, names), "compare.js")


def _titles(runs: tuple[Finished, Finished]) -> Iterator[Html]:
    for letter, run in zip("AB", runs, strict=True):
        setting = f": {run.shown.setting}" if run.shown.setting else ""
        yield tag("p", tag("strong", letter), f" = {run.folder}{setting}", class_="setting")


def _point_names(runs: tuple[Finished, Finished]) -> Mapping[str, str]:
    """The compared points as people write them."""
    rows = {str(row["point"]): row for row in runs[0].rows}
    axes = runs[0].shown.axes
    found = {}
    for ours, theirs in pairs_of_points(*(read_results(run.folder) for run in runs)):
        name = ours if ours == theirs else f"{ours} | {theirs}"
        found[name] = point_name(rows[ours], axes) if ours == theirs else "the one point"
    return found


def comparison_sentence(found: Sequence[Difference], names: Mapping[str, str]) -> str:
    """Says in one sentence how B differs from A in mean and P99 TPOT."""
    if all(d.identical for d in found):
        return f"{IDENTICAL}."
    said = [_of_figure([d for d in found if d.name == name], name) for name in MAIN]
    many = len(names) > 1
    return f"{f'Over {len(names)} points, ' if many else ''}B's {' and its '.join(said)}."


def _of_figure(found: Sequence[Difference], name: str) -> str:
    noun = name_and_unit(name)[0]
    if len(found) == 1:
        return f"{noun} is {_told(found[0])}"
    lower = sum(d.high < 0.0 for d in found)
    higher = sum(d.low > 0.0 for d in found)
    same = sum(d.identical for d in found)
    rest = len(found) - lower - higher - same
    counts = {"lower": lower, "higher": higher, "identical": same, "not settled": rest}
    said = ", ".join(
        f"{word} at {'every point' if n == len(found) else n}" for word, n in counts.items() if n
    )
    changes = sorted(_percent(d) for d in found)
    return f"{noun} is {said} (from {changes[0]:+.1f} to {changes[-1]:+.1f} %)"


def _told(d: Difference) -> str:
    if d.identical:
        return "identical to A's"
    if not d.settled:
        why = f"; {STATE_IT}" if d.by_spread else ""
        return f"not settled ({d.difference:+.2f} ms, 95 % interval: {d.interval}{why})"
    word = "lower" if d.difference < 0 else "higher"
    return f"{abs(_percent(d)):.1f} % {word} than A's ({d.difference:+.2f} ms, 95 % interval: {d.interval})"


def _percent(d: Difference) -> float:
    return 100.0 * d.difference / d.a if d.a else 0.0


def _differences(found: Sequence[Difference], names: Mapping[str, str]) -> Iterator[Html]:
    """The figure's place, its switches, and the table."""
    yield tag("noscript", tag("p", "The figure needs JavaScript; the table holds the same numbers."))
    yield tag(
        "form",
        _radios("statistic", {"mean": "Mean", "p99": "P99"}, "Statistic"),
        _radios("unit", {"percent": "% of A", "ms": "ms"}, "Difference"),
        id="controls",
        hidden=True,
    )
    note = (
        "Left of zero B is faster. Bars: 95 % intervals from resampled pairs of the same request. "
        "Grey and hollow: not settled, or identical."
    )
    if any(d.band for d in found):
        note += f" P99 bars: {BAND}"
    caption = tag("figcaption", tag("h3", "B less A"), tag("p", note))
    yield tag("figure", caption, tag("div", class_="panels"), id="fig-differences")
    rows = [_row(d, names[d.point]) for d in found]
    headings = ["point", "figure", "A, ms", "B, ms", "B - A, ms", "95 % interval", "B / A", "", "pairs"]
    yield table("Differences of latencies", headings, rows, row_headings=2)


def _radios(name: str, options: Mapping[str, str], legend: str) -> Html:
    first = next(iter(options))
    inputs = [
        tag("label", tag("input", type="radio", name=name, value=value, checked=value == first), f" {word}")
        for value, word in options.items()
    ]
    return tag("fieldset", tag("legend", legend), tag("div", *inputs, class_="choices"))


def _row(d: Difference, point: str) -> list[TableCell]:
    word = _verdict(d)
    ratio = TableCell(f"{d.b / d.a:.3f}", d.b / d.a) if d.a else TableCell("")
    return [
        TableCell(point),
        TableCell(name_and_unit(d.name)[0]),
        TableCell(f"{d.a:,.2f}", d.a),
        TableCell(f"{d.b:,.2f}", d.b),
        TableCell(f"{d.difference:+,.2f}", d.difference),
        TableCell(d.interval, d.high if d.bounded else None),
        ratio,
        TableCell(word),
        TableCell(f"{d.pairs:,}", float(d.pairs)),
    ]


def _verdict(d: Difference) -> str:
    if d.identical:
        return "identical"
    if d.by_spread:
        return "not settled: state or measure the spread"
    return ("B faster" if d.difference < 0 else "B slower") if d.settled else "not settled"


def _side_by_side(runs: tuple[Finished, Finished]) -> Html:
    """Both runs' points, A above B."""
    pairs = pairs_of_points(*(read_results(run.folder) for run in runs))
    by_id = [{str(row["point"]): row for row in run.rows} for run in runs]
    rows: list[Row] = []
    for ours, theirs in pairs:
        rows += [by_id[0][ours], by_id[1][theirs]]
    letters = {place: "AB"[place % 2] for place in range(len(rows))}
    return points_table(rows, runs[0].shown.axes, letters)


def _settings(runs: tuple[Finished, Finished]) -> Html:
    """Settings that are not the same in both, by their dotted keys."""
    flat = [dict(_flat(read_yaml(run.folder / "resolved.yaml").data)) for run in runs]
    keys = [key for key in dict.fromkeys([*flat[0], *flat[1]]) if key.split(".")[0] not in NOT_A_SETTING]
    rows = [
        [TableCell(key), *(TableCell(_shown(settings, key)) for settings in flat)]
        for key in keys
        if _shown(flat[0], key) != _shown(flat[1], key)
    ]
    if not rows:
        return tag("p", "None: the same experiment twice.")
    return table("By their keys in resolved.yaml", ["setting", "A", "B"], rows)


def _shown(settings: Mapping[str, object], key: str) -> str:
    if key not in settings:
        return "not there"
    value = settings[key]
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _flat(data: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted key -> value of nested mappings."""
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _versions(runs: tuple[Finished, Finished]) -> Html:
    parts: list[Html] = []
    for letter, run in zip("AB", runs, strict=True):
        seeds = run.manifest.get("seeds")
        pairs = {
            "folder": run.folder,
            "Specfleet": run.manifest.get("specfleet"),
            "seeds": ", ".join(map(str, seeds)) if isinstance(seeds, list) else None,
            "resolved.yaml, SHA-256": run.manifest.get("resolved_sha256"),
        }
        parts += [tag("h3", letter), definitions(pairs)]
    return section("versions", "Versions and seeds", *parts)


def _payload(found: Sequence[Difference], names: Mapping[str, str]) -> dict[str, object]:
    rows = []
    for d in found:
        statistic, _, metric = d.name.removesuffix("_ms").partition("_")
        rows.append(
            {
                "point": names[d.point],
                "statistic": statistic,
                "metric": metric,
                "name": name_and_unit(d.name)[0],
                "a": d.a,
                "b": d.b,
                "low": d.low if d.bounded else d.difference,
                "high": d.high if d.bounded else d.difference,
                "verdict": _verdict(d),
            }
        )
    return {"rows": rows}
