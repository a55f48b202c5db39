"""HTML that is escaped by construction, and the page around it: one file, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

ASSETS = Path(__file__).parent / "assets"
LIBRARIES = ("d3.min.js", "plot.umd.min.js")
"""Observable Plot and the d3 it stands on, as published; licences in LICENSES.txt."""

VOID = frozenset({"meta", "br", "input", "hr"})


class Html(str):
    """Text that is markup already; every other text is escaped where it enters a tag."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | bool | None) -> Html:
    """Returns an element.

    Args:
        name: of the element.
        children: markup as it is, plain text escaped, None left out.
        attributes: `class_` is `class`, `data_x` is `data-x`; True has no value, None and False are left out.
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{join(children)}</{name}>")


def join(children: Sequence[str | None]) -> Html:
    """Returns markup and escaped text one after the other."""
    parts = (child if isinstance(child, Html) else html.escape(child) for child in children if child)
    return Html("".join(parts))


@dataclass(frozen=True)
class TableCell:
    """A cell of a table.

    Attributes:
        text: shown.
        value: sorted by, where it is a number.
    """

    text: str
    value: float | None = None


MOST_ROWS = 1000
"""Rows of a table: a browser takes seconds to lay out ten times as many, and nobody reads them."""


def table(
    caption: str, headings: Sequence[str], rows: Sequence[Sequence[TableCell]], row_headings: int = 1
) -> Html:
    """Returns a table that can be sorted, in a frame that scrolls sideways where it is narrow.

    Args:
        caption: said above it, and by screen readers.
        headings: one a column.
        rows: as many cells each.
        row_headings: the first so many cells of a row name it.

    Of more than `MOST_ROWS` rows the first are shown, and the caption says where the others are.
    """
    if len(rows) > MOST_ROWS:
        caption = f"{caption}; the first {MOST_ROWS:,} of {len(rows):,} rows, summary.csv has every point"
        rows = rows[:MOST_ROWS]
    numbers = [bool(rows) and all(row[i].value is not None for row in rows) for i in range(len(headings))]
    head = tag(
        "tr",
        *(
            tag("th", heading, scope="col", class_="number" if number else None)
            for heading, number in zip(headings, numbers, strict=True)
        ),
    )
    body = [
        tag("tr", *(_cell(cell, heads=place < row_headings) for place, cell in enumerate(row)))
        for row in rows
    ]
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body), class_="sortable")
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _cell(cell: TableCell, heads: bool) -> Html:
    number = cell.value is not None
    value = f"{cell.value:.9g}" if cell.value is not None and math.isfinite(cell.value) else None
    kind = "number" if number else None
    if heads:
        return tag("th", cell.text, scope="row", class_=kind, data_value=value)
    return tag("td", cell.text, class_=kind, data_value=value)


def section(name: str, title: str, *children: str | None) -> Html:
    """Returns a section with an anchor and a heading that names it."""
    heading = tag("h2", title, id=f"{name}-title")
    return tag("section", heading, *children, id=name, aria_labelledby=f"{name}-title")


def listed(sentences: Sequence[str], class_: str | None = None) -> Html | None:
    """Returns a list, a sentence an item; None without one."""
    return tag("ul", *(tag("li", said) for said in sentences), class_=class_) if sentences else None


def folded(summary: str, *children: str | None, open_: bool = False) -> Html:
    """Returns something that unfolds, and is unfolded on paper."""
    return tag("details", tag("summary", summary), *children, open=open_, data_print=True)


MEDIA_TYPES = {".png": "image/png", ".svg": "image/svg+xml"}


def picture(path: Path) -> Html:
    """Returns a figure as it was drawn, inside the page."""
    data = base64.b64encode(path.read_bytes()).decode()
    name, source = path.stem.replace("_", " "), f"data:{MEDIA_TYPES[path.suffix]};base64,{data}"
    return tag("figure", tag("img", src=source, alt=name, class_="drawn"))


def page(
    title: str,
    body: Html,
    sections: Mapping[str, str],
    payload: object,
    script: str | None,
    images: bool = False,
) -> str:
    """Returns the whole page.

    No script can run but those bundled, whose hashes the page's policy lists, and nothing can be fetched.

    Args:
        title: of the window.
        body: what the reader sees.
        sections: anchor -> name, for the navigation.
        payload: what the figures draw, as JSON; NaN becomes null.
        script: the file in `assets` that draws them; None where nothing is drawn by a script.
        images: whether the page holds pictures of its own.
    """
    drawing = (*LIBRARIES, "page.js", script) if script is not None else ("page.js",)
    scripts = [read_asset(name) for name in drawing]
    hashes = " ".join(f"'sha256-{_sha256(text)}'" for text in scripts)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}; base-uri 'none'"
    policy += "; img-src data:" if images else ""
    links = [tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name in sections.items()]
    return Template(read_asset("page.html")).substitute(
        policy=html.escape(policy),
        title=html.escape(title),
        style=read_asset("page.css"),
        navigation=tag("ul", *links),
        body=body,
        licences=html.escape(read_asset("LICENSES.txt")),
        payload=embedded(payload),
        scripts="\n".join(f"<script>{text}</script>" for text in scripts),
    )


def read_asset(name: str) -> str:
    """Returns a file of `assets`."""
    return (ASSETS / name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def embedded(payload: object) -> str:
    """Returns JSON that no text in it can break out of."""
    text = json.dumps(_finite(payload), allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(content: object) -> object:
    """Numbers to six digits, which is more than a figure shows; None for what is no number."""
    if isinstance(content, float):
        return float(f"{content:.6g}") if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {str(key): _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return content
