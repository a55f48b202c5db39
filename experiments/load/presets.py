"""The shipped experiments by name: what can be run, or copied, without the repository."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults, did_you_mean

_FOLDERS = ("", "claims")


def preset_files() -> dict[str, Path]:
    """Every shipped experiment: name -> file."""
    with as_file(files("specfleet.experiments").joinpath("presets")) as folder:
        return {path.stem: path for sub in _FOLDERS for path in sorted((folder / sub).glob("*.yaml"))}


def preset_file(name: str) -> Path:
    """The file of a shipped experiment. InputFaults with the nearest name if there is none."""
    known = preset_files()
    if name not in known:
        raise InputFaults([Fault(COMMAND_LINE, 0, name, f"no such preset; {did_you_mean(name, known)}")])
    return known[name]


def preset_text() -> str:
    """The shipped experiments, each with its first comment."""
    known = preset_files()
    wide = max(map(len, known))
    lines = []
    for name, path in known.items():
        first = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        lines.append(f"{name:<{wide}}  {first.removeprefix(f'experiments/presets/{name}.yaml: ')}")
    return "\n".join(lines)


def file_or_preset(given: Path) -> Path:
    """A file as it is; where there is none of that name, the shipped experiment called so."""
    name = str(given)
    if lookups.is_there(name) or "/" in name or given.suffix:
        return given
    return preset_files().get(name, given)
