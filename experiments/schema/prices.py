"""Prices of a plan that stand in a file of their own, put where the plan's own prices are.

A CSV has a header with `gpu`, `usd_per_gpu_hour` and, where one GPU has several prices, `kind` (`on_demand`,
`spot`, ..). A YAML file has `GPU: dollars`, or `GPU: {kind: dollars}`. A price without a kind is of any.
Names are those of the catalogue, aliases too, or of the plan's candidates. Places in the file stay, so that
faults name the line that was typed.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.faults import NO_FILES, Fault, InputFaults, did_you_mean
from specfleet.experiments.schema.yamlfile import Document, KeyPath, Mark, Value, parse
from specfleet.hardware import catalog

PRICES: KeyPath = ("plan", "prices_per_hour_usd")
FILE: KeyPath = ("plan", "prices_file")
COLUMNS = ("gpu", "usd_per_gpu_hour")
KIND = "kind"
MOST_USD = 1e6
"""Dollars an hour of a GPU, at most."""


@dataclass(frozen=True)
class Price:
    """A price of a file.

    Attributes:
        gpu: as written.
        kind: of the contract; "" where the file says none.
        usd: dollars for a GPU and hour, as written.
        line: in the file.
    """

    gpu: str
    kind: str
    usd: object
    line: int


def translated(document: Document) -> Document:
    """The document with the prices of `plan.prices_file` beside the plan's own, which count before them."""
    plan = document.data.get("plan")
    named = plan.get("prices_file") if isinstance(plan, dict) else None
    if not isinstance(plan, dict) or not isinstance(named, str):
        return document
    path = _there(named, document.mark(FILE).file)
    try:
        listed = list(_read(path))
    except InputFaults as unreadable:
        return replace(document, faults=(*document.faults, *unreadable.faults))
    wanted = plan.get("price_kind")
    names = _candidates(document)
    faults = list(_faults(listed, path, names))
    found: dict[str, Value] = {}
    marks: dict[KeyPath, Mark] = {}
    sound = {price.line for price in listed} - {fault.line for fault in faults}
    for name in names:
        mine = [price for price in listed if _same(price.gpu, name)]
        if not all(price.line in sound for price in mine):
            continue
        exact = [price for price in mine if price.kind == (wanted or "")]
        chosen = exact or [price for price in mine if wanted is None or not price.kind]
        if len(chosen) > 1:
            faults.append(_several(name, chosen, path, isinstance(wanted, str)))
        elif mine and not chosen:
            faults.append(_no_such_kind(name, mine, path, str(wanted)))
        elif chosen:
            found[name] = float(str(chosen[0].usd))
            marks[(*PRICES, name)] = Mark(str(path), chosen[0].line)
    own = plan.get("prices_per_hour_usd")
    if isinstance(own, dict):
        found, marks = {**found, **own}, {key: mark for key, mark in marks.items() if key[-1] not in own}
    data = {
        **document.data,
        "plan": {**plan, "prices_file": str(path.resolve()), "prices_per_hour_usd": found},
    }
    return replace(document, data=data, marks={**document.marks, **marks}, faults=(*document.faults, *faults))


def with_day_there(document: Document) -> Document:
    """The document with the whole path of the log that a plan's day is counted from."""
    plan = document.data.get("plan")
    day = plan.get("day") if isinstance(plan, dict) else None
    named = day.get("trace") if isinstance(day, dict) else None
    if not isinstance(plan, dict) or not isinstance(day, dict) or not isinstance(named, str):
        return document
    path = _there(named, document.mark(("plan", "day", "trace")).file).resolve()
    return replace(document, data={**document.data, "plan": {**plan, "day": {**day, "trace": str(path)}}})


def seen_from_anywhere(document: Document) -> Document:
    """The document with the whole paths of a plan's prices and log."""
    document = with_day_there(document)
    plan = document.data.get("plan")
    named = plan.get("prices_file") if isinstance(plan, dict) else None
    if not isinstance(plan, dict) or not isinstance(named, str):
        return document
    path = _there(named, document.mark(FILE).file).resolve()
    return replace(document, data={**document.data, "plan": {**plan, "prices_file": str(path)}})


def _there(named: str, file: str) -> Path:
    """A path seen from the file that names it."""
    return Path(named) if file in NO_FILES else Path(file).parent / named


def _candidates(document: Document) -> list[str]:
    """What the plan's GPUs are called: as written, or by the name of a mapping."""
    plan, serve = document.data.get("plan"), document.data.get("serve")
    listed = plan.get("candidates") if isinstance(plan, dict) else None
    gpus = listed.get("gpu") if isinstance(listed, dict) else None
    if not isinstance(gpus, tuple):
        gpus = (serve.get("gpu"),) if isinstance(serve, dict) else ()
    names = [gpu.get("name", gpu.get("base")) if isinstance(gpu, dict) else gpu for gpu in gpus]
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


def _same(written: str, candidate: str) -> bool:
    """Whether a name of the file means a candidate: its own name, or another of the same GPU."""
    return written == candidate or _record(written) == _record(candidate) is not None


def _record(name: str) -> str | None:
    try:
        return lookups.accelerator(name).name
    except ValueError:
        return None


def _read(path: Path) -> Iterator[Price]:
    """Yields the prices of a file; InputFaults where it cannot be read as a whole."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        message = f"the prices of the plan cannot be read: {said}; check plan.prices_file"
        raise InputFaults([Fault(str(path), 1, "", message)]) from None
    return _of_csv(text, path) if path.suffix.lower() == ".csv" else _of_yaml(text, path)


def _of_csv(text: str, path: Path) -> Iterator[Price]:
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    head = [cell.strip() for cell in next(rows, [])]
    missing = [name for name in COLUMNS if name not in head]
    unknown = [name for name in head if name not in (*COLUMNS, KIND)]
    if missing or unknown:
        wrong = f"lacks the column {missing[0]}" if missing else f"has a column {unknown[0]!r}"
        message = (
            f"the first line {wrong}; prices have the columns gpu, kind (may be left out), usd_per_gpu_hour"
        )
        raise InputFaults([Fault(str(path), 1, "", message)])
    for row in rows:
        cells = dict(zip(head, (cell.strip() for cell in row), strict=False))
        if any(cells.values()):
            yield Price(cells["gpu"], cells.get(KIND, ""), cells.get("usd_per_gpu_hour", ""), rows.line_num)


def _of_yaml(text: str, path: Path) -> Iterator[Price]:
    document = parse(text, str(path))
    if document.faults:
        raise InputFaults(document.faults)
    for gpu, value in document.data.items():
        kinds = value if isinstance(value, dict) else {"": value}
        for kind, usd in kinds.items():
            key: KeyPath = (gpu, kind) if isinstance(value, dict) else (gpu,)
            yield Price(gpu, kind, usd, document.mark(key).line)


def _faults(listed: list[Price], path: Path, names: list[str]) -> Iterator[Fault]:
    """What is wrong with single lines, and a GPU with one kind twice."""
    seen: dict[tuple[str, str], int] = {}
    known = list(dict.fromkeys([*names, *catalog.names("accelerators")]))
    for price in listed:
        at = str(path), price.line, on_line(price)
        if price.gpu not in names and _record(price.gpu) is None:
            yield Fault(*at, f"is no GPU that is known; {did_you_mean(price.gpu, known)}")
        elif not _is_price(price.usd):
            yield Fault(*at, f"{price.usd!r} is no price; give dollars for a GPU and hour, such as 3.90")
        elif (
            other := seen.setdefault((_record(price.gpu) or price.gpu, price.kind), price.line)
        ) != price.line:
            yield Fault(*at, f"has a price in line {other} already; keep one")


def on_line(price: Price) -> str:
    """What a fault calls a price."""
    return f"{price.gpu} {price.kind}".strip()


def _is_price(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return False
    try:
        return 0.0 < float(value) <= MOST_USD and math.isfinite(float(value))
    except ValueError:
        return False


def _several(name: str, chosen: list[Price], path: Path, asked: bool) -> Fault:
    kinds = ", ".join(price.kind or "none" for price in chosen)
    message = f"has several prices ({kinds}); say which counts: plan.price_kind"
    if asked:
        message = "is named in several ways at different prices; keep one"
    return Fault(str(path), chosen[-1].line, name, message)


def _no_such_kind(name: str, mine: list[Price], path: Path, wanted: str) -> Fault:
    kinds = ", ".join(price.kind or "none" for price in mine)
    return Fault(str(path), mine[0].line, name, f"has no price of the kind {wanted}, only of {kinds}")
