"""The shipped catalogue: a name, a Hugging Face id, an alias or a mapping becomes a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from hardware.accelerator import Accelerator
from hardware.engine_profile import EngineProfile
from hardware.model import NGRAM, DrafterSpec, ModelSpec

Reference = str | Mapping[str, Any]
"""A name, or a mapping: `{base: name, key: value}` changes a record, any other mapping is a whole record."""

_KINDS: dict[str, type[Any]] = {
    "accelerators": Accelerator,
    "models": ModelSpec,
    "drafters": DrafterSpec,
    "engines": EngineProfile,
}
_GIVEN_LATER = {"source": "given inline", "hf_id": ""}
_R = TypeVar("_R", Accelerator, ModelSpec, DrafterSpec, EngineProfile)


class CatalogError(KeyError):
    """Something asked of the catalogue that it does not have, or an inline record that is wrong."""

    def __str__(self) -> str:
        """The message as written (KeyError would quote it)."""
        return str(self.args[0])


def accelerator(reference: Reference) -> Accelerator:
    """A GPU by name or alias, or inline; `{base: h100-sxm, p2p: false}` overrides it."""
    if isinstance(reference, Mapping) and "base" in reference:
        base = accelerator(reference["base"])
        changes = {key: value for key, value in reference.items() if key != "base"}
        hints = _hints(Accelerator)
        checked = {
            key: _convert(hints[key], value, f"accelerator.{key}") if key in hints else value
            for key, value in changes.items()
        }
        return _guard(lambda: base.override(**checked))
    return _resolve("accelerators", Accelerator, reference)


def model(reference: Reference) -> ModelSpec:
    """A model by name, Hugging Face id or alias, or inline."""
    return _resolve("models", ModelSpec, reference)


def drafter(reference: Reference) -> DrafterSpec:
    """A drafter by name, Hugging Face id or alias, or inline; "ngram"; or any model, as a draft model.

    An inline mapping without `method` is read as an inline model.
    """
    if isinstance(reference, Mapping):
        if "base" not in reference and "method" not in reference:
            return DrafterSpec.from_model(model(reference))
        return _resolve("drafters", DrafterSpec, reference)
    if reference.lower() == NGRAM.name:
        return NGRAM
    drafters, models = _index("drafters"), _index("models")
    if reference.lower() not in drafters and reference.lower() in models:
        return DrafterSpec.from_model(model(reference))
    if reference.lower() not in drafters:
        raise CatalogError(
            _unknown("drafter", reference, [*_known("drafters"), *_known("models"), NGRAM.name])
        )
    return _resolve("drafters", DrafterSpec, reference)


def engine_profile(reference: Reference) -> EngineProfile:
    """An engine profile by name or alias; `{base: vllm-0.33, host_sync_s: 0.9e-3}` adapts it to a host."""
    return _resolve("engines", EngineProfile, reference)


def names(kind: str) -> tuple[str, ...]:
    """Names of all records of a kind: accelerators, models, drafters or engines."""
    if kind not in _KINDS:
        raise CatalogError(_unknown("kind of record", kind, list(_KINDS)))
    return tuple(sorted({record.name for record in _index(kind).values()}))


@cache
def _index(kind: str) -> dict[str, Any]:
    """Records by lower-case name, Hugging Face id and alias."""
    index: dict[str, Any] = {}
    for path in sorted((Path(__file__).parent / "catalog" / kind).glob("*.yaml")):
        record = _build(_KINDS[kind], yaml.safe_load(path.read_text(encoding="utf-8")), path.name)
        for key in (record.name, getattr(record, "hf_id", ""), *record.aliases):
            if key:
                index[key.lower()] = record
    return index


def _resolve(kind: str, cls: type[_R], reference: Reference) -> _R:
    label = kind.removesuffix("s")
    if isinstance(reference, str):
        found = _index(kind).get(reference.lower())
        if found is None:
            raise CatalogError(_unknown(label, reference, _known(kind)))
        return found  # type: ignore[no-any-return]
    if "base" not in reference:
        return _build(cls, {**_later(cls), **reference}, label)
    base = _resolve(kind, cls, reference["base"])
    changes = {key: value for key, value in reference.items() if key != "base"}
    checked = _checked(cls, changes, label)
    return _guard(lambda: replace(base, **checked))


def _build(cls: type[_R], values: Mapping[str, Any], where: str) -> _R:
    """A record from a mapping: known keys only, none missing, right types, then the record's own checks."""
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    checked = _checked(cls, values, where)
    if missing := [key for key in required if key not in checked]:
        raise CatalogError(f"{where}: missing {', '.join(missing)}")
    return _guard(lambda: cls(**checked))


def _known(kind: str) -> list[str]:
    """Every name and alias of a kind, sorted."""
    records = list(_index(kind).values())
    return sorted({name for record in records for name in (record.name, *record.aliases)})


def _later(cls: type[Any]) -> dict[str, str]:
    """What an inline record may leave out."""
    hints = _hints(cls)
    return {key: value for key, value in _GIVEN_LATER.items() if hints.get(key) is str}


def _checked(cls: type[Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    hints = _hints(cls)
    for key in values:
        if key not in hints:
            raise CatalogError(f"{where}: {_unknown('key', key, list(hints))}")
    return {key: _convert(hints[key], value, f"{where}.{key}") for key, value in values.items()}


def _hints(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls)


def _convert(hint: Any, value: Any, where: str) -> Any:
    """`value` as the annotated type; raises CatalogError saying what was expected."""
    if get_origin(hint) in (Union, UnionType):
        if value is None:
            return None
        hint = next(option for option in get_args(hint) if option is not type(None))
    if hint is ModelSpec:
        return value if isinstance(value, ModelSpec) else model(value)
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_convert(get_args(hint)[0], item, where) for item in value)
    if get_origin(hint) is Mapping and isinstance(value, Mapping):
        return {str(key): _convert(get_args(hint)[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    expected = getattr(hint, "__name__", str(hint))
    raise CatalogError(f"{where} is {value!r}; expected {_PLAIN.get(expected, expected)}")


_PLAIN = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}


def _guard(make: Callable[[], _R]) -> _R:
    """Run `make`; what a record objects to becomes a CatalogError."""
    try:
        return make()
    except ValueError as error:
        raise CatalogError(str(error)) from None


def _unknown(what: str, name: object, known: list[str]) -> str:
    by_lower = {key.lower(): key for key in known}
    close = [by_lower[key] for key in get_close_matches(str(name).lower(), by_lower, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known: {', '.join(known)}"
    return f"unknown {what} {name!r}; {hint}"
