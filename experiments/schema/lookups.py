"""Catalogue names in an experiment, looked up; what is not found is an error in the user's words.

Workloads (numpy) and acceptance blocks (pydantic) are imported where they are asked for: `theory` and
`catalog` look up models only and would wait for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from specfleet.experiments.schema.faults import did_you_mean
from specfleet.hardware import catalog
from specfleet.hardware.accelerator import Accelerator
from specfleet.hardware.engine_profile import EngineProfile
from specfleet.hardware.model import DrafterSpec, ModelSpec

if TYPE_CHECKING:
    from specfleet.experiments.schema.blocks.acceptance import Process
    from specfleet.workloads.profiles import Preset

Record = TypeVar("Record")
PROFILES = Path(__file__).parents[1] / "presets" / "acceptance"


def _plain(find: Callable[[], Record]) -> Record:
    """What `find` finds; ValueError with the catalogue's message for a bad name or mapping."""
    try:
        return find()
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(str(error.args[0]) if error.args else str(error)) from None


@functools.cache
def _objection(find: Callable[[str], object], name: str) -> str:
    """What the catalogue says of a name that it has not; empty where it has it.

    Kept, since rules ask for names that may be missing, and to look for those like them takes milliseconds.
    """
    try:
        _plain(lambda: find(name))
    except ValueError as error:
        return str(error)
    return ""


def _shipped(find: Callable[[str | dict[str, object]], Record], named: str | dict[str, object]) -> Record:
    """As `_plain`, of what the catalogue alone knows by name."""
    if isinstance(named, str) and (said := _objection(find, named)):
        raise ValueError(said)
    return _plain(lambda: find(named))


def engine(name: str) -> EngineProfile:
    """The engine profile called `name`. ValueError with the closest names if there is none."""
    return _plain(lambda: catalog.engine_profile(name))


def accelerator(named: str | dict[str, object]) -> Accelerator:
    """A GPU by name or mapping. ValueError says what is wrong with it."""
    return _shipped(catalog.accelerator, named)


def model(named: str | dict[str, object]) -> ModelSpec:
    """A target model by name, Hugging Face id or mapping. ValueError says what is wrong with it."""
    return _shipped(catalog.model, named)


def drafter(named: str | dict[str, object]) -> DrafterSpec:
    """A drafter by name, Hugging Face id or mapping. ValueError says what is wrong with it."""
    return _shipped(catalog.drafter, named)


def preset(name: str) -> Preset:
    """A workload preset. ValueError with the closest names if there is none."""
    from specfleet.workloads import profiles

    return _plain(lambda: profiles.preset(name))


def acceptance_profile_names() -> tuple[str, ...]:
    """Names of all shipped acceptance profiles, sorted."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.yaml")))


@functools.cache
def acceptance_profile(name: str) -> Process:
    """A measured acceptance process. ValueError with the closest names if there is none."""
    from specfleet.experiments.schema.blocks.acceptance import Process
    from specfleet.experiments.schema.yamlfile import read_yaml

    names = acceptance_profile_names()
    if name not in names:
        raise ValueError(f"no acceptance profile {name!r}; {did_you_mean(name, names)}")
    return Process.model_validate(read_yaml(PROFILES / f"{name}.yaml").data)


def is_file(path: str) -> bool:
    """Whether a path is that of a file; one that no file system takes is none."""
    try:
        return Path(path).is_file()
    except OSError:
        return False


def is_there(path: str) -> bool:
    """Whether something lies at a path; nothing does at one that no file system takes."""
    try:
        return Path(path).exists()
    except OSError:
        return False


def found(find: Callable[[], Record]) -> Record | None:
    """What a look-up finds, or None: for rules about records whose absence another rule reports."""
    try:
        return find()
    except ValueError:
        return None
