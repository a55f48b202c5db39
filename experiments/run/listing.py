"""What `results/` holds: every folder of a run, a plan or a break-even search, and how far it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from specfleet.experiments.run.files import FolderFault
from specfleet.experiments.run.folder import LATEST, MANIFEST, Manifest, manifest_of, numbers, simulations
from specfleet.experiments.run.lock import holder
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.schema.yamlfile import read_yaml

NOT_A_SETTING = ("name", "report", "claim")
"""Blocks that do not change what is simulated."""


@dataclass(frozen=True)
class Listed:
    """A folder below `results/`.

    Attributes:
        name: of the folder below `results/`.
        number: of the run in it; None where the folder was named by `--out`.
        kind: `run`, `plan` or `breakeven`; empty where nobody can tell.
        begun: when it was made, to the minute, local time.
        simulations: how many of a run are there, and how many were asked for; None for other kinds.
        state: `whole`, `at work`, `not whole` or `damaged`.
        differs: settings that are not those of the number before it, `key: before -> now`.
    """

    name: str
    number: int | None
    kind: str
    begun: str
    simulations: tuple[int, int] | None
    state: str
    differs: tuple[str, ...]


def listing(base: Path, name: str | None = None) -> list[Listed]:
    """Returns what lies below a folder of results, by name and number.

    Args:
        base: such as `results`.
        name: only this one's.

    Raises:
        FolderFault: there is no such folder.
    """
    if not base.is_dir() or (name is not None and not (base / name).is_dir()):
        raise FolderFault(base / (name or ""), "is not there; `specfleet run` makes it")
    there = sorted(path.name for path in base.iterdir() if path.is_dir() and path.name != LATEST)
    names = there if name is None else [name]
    return [found for each in names for found in _of_name(base / each)]


def _of_name(folder: Path) -> Iterator[Listed]:
    if (folder / MANIFEST).is_file():
        yield _listed(folder, folder.name, None, {})
    before: Mapping[str, object] = {}
    for number in numbers(folder):
        yield _listed(folder / str(number), folder.name, number, before)
        before = _settings(folder / str(number)) or before


def _listed(folder: Path, name: str, number: int | None, before: Mapping[str, object]) -> Listed:
    begun = datetime.fromtimestamp(_begun(folder), tz=UTC)
    when = f"{begun.astimezone():%Y-%m-%d %H:%M}"
    try:
        manifest = manifest_of(folder)
    except FolderFault:
        return Listed(name, number, "", when, None, "damaged", ())
    if manifest is None:
        return Listed(name, number, "", when, None, _state(folder, {}), ())
    kind = str(manifest.get("kind", "run"))
    now = _settings(folder)
    differs = tuple(_differences(before, now)) if before and now else ()
    made = simulations(folder, manifest) if kind == "run" else None
    return Listed(name, number, kind, when, made, _state(folder, manifest), differs)


def _begun(folder: Path) -> float:
    """Seconds since 1970: experiment.yaml is written when a run begins, the manifest alone by other kinds."""
    first = next((p for p in (folder / "experiment.yaml", folder / MANIFEST) if p.is_file()), folder)
    return first.stat().st_mtime


def _state(folder: Path, manifest: Manifest) -> str:
    if holder(folder) is not None:
        return "at work"
    return "whole" if manifest.get("whole") is True else "not whole"


def _settings(folder: Path) -> dict[str, object]:
    """What was simulated, by dotted key; empty where resolved.yaml cannot be read."""
    try:
        data = read_yaml(folder / "resolved.yaml").data
    except (InputFaults, OSError):
        return {}
    return dict(_flat({key: value for key, value in data.items() if key not in NOT_A_SETTING}))


def _flat(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for name, child in value.items():
            yield from _flat(child, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _differences(before: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    for key in dict.fromkeys([*before, *now]):
        if before.get(key) != now.get(key):
            yield f"{key}: {_said(before.get(key))} -> {_said(now.get(key))}"


def _said(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_said, value))}]"
    return "null" if value is None else str(value)
