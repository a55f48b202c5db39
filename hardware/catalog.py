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

from specfleet.hardware.accelerator import Accelerator
from specfleet.hardware.engine_profile import EngineProfile
from specfleet.hardware.heads import MAKERS
from specfleet.hardware.hfconfig import model_from_config, read_hf_config
from specfleet.hardware.memoryrules import MemoryRules
from specfleet.hardware.model import NGRAM, SUFFIX, DrafterSpec, ModelSpec

Reference = str | Mapping[str, Any]
"""A name, or a mapping: `{base: name, key: value}` changes a record, any other mapping is a whole record.

A model can be `{hf_config: PATH}`, a drafter `{eagle3_for: MODEL}` (or another form of `heads.MAKERS`), each
with further keys that change what comes out.
"""

_KINDS: dict[str, type[Any]] = {
    "accelerators": Accelerator,
    "models": ModelSpec,
    "drafters": DrafterSpec,
    "engines": EngineProfile,
}
_SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser, where PyYAML was built with it: every command reads the catalogue."""
_GIVEN_LATER = {"source": "given inline", "hf_id": ""}
_ON_HOST = {drafter.name: drafter for drafter in (NGRAM, SUFFIX)}
_OTHER_MODEL = "Any other model: hf_config: PATH of its config.json from Hugging Face"
_OTHER_DRAFTER = "Any other head: {eagle3_for: MODEL}, any other draft model: {hf_config: PATH}"
_R = TypeVar("_R", Accelerator, ModelSpec, DrafterSpec, EngineProfile)
_P = TypeVar("_P", Accelerator, ModelSpec, DrafterSpec, EngineProfile, MemoryRules)


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
    """A model by name, Hugging Face id or alias, inline, or read from a `config.json`.

    An unknown id raises CatalogError, which names `hf_config:`.
    """
    if isinstance(reference, Mapping) and "hf_config" in reference:
        return _changed(_guard(lambda: read_hf_config(str(reference["hf_config"]))), reference, "hf_config")
    return _resolve("models", ModelSpec, reference)


def drafter(reference: Reference) -> DrafterSpec:
    """A drafter by name, Hugging Face id or alias, inline, or made for a model; "ngram"; "suffix"; or any
    model, as a draft model.

    An inline mapping without `method` is read as an inline model.
    """
    if isinstance(reference, Mapping):
        if MAKERS.keys() & reference.keys():
            return _made(reference)
        if "base" not in reference and "method" not in reference:
            return DrafterSpec.from_model(model(reference))
        return _resolve("drafters", DrafterSpec, reference)
    name = reference.lower()
    if name in _ON_HOST:
        return _ON_HOST[name]
    if name in _entries("drafters"):
        return _resolve("drafters", DrafterSpec, reference)
    if name in _entries("models"):
        return DrafterSpec.from_model(model(reference))
    known = [*_known("drafters"), *_known("models"), *_ON_HOST]
    raise CatalogError(f"{_unknown('drafter', reference, known)}. {_OTHER_DRAFTER}")


def engine_profile(reference: Reference) -> EngineProfile:
    """An engine profile by name or alias; `{base: vllm-0.33, host_sync_s: 0.9e-3}` adapts it to a host.

    A name that ends in .yaml is a file with such a mapping, as `specfleet calibrate` writes it.
    """
    if isinstance(reference, str) and reference.endswith((".yaml", ".yml")):
        return _resolve("engines", EngineProfile, _profile_file(Path(reference)))
    return _resolve("engines", EngineProfile, reference)


def _profile_file(path: Path) -> Mapping[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogError(f"engine profile {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CatalogError(f"engine profile {path} is no YAML: {error}") from None
    if not isinstance(values, dict):
        raise CatalogError(f"engine profile {path} must be a mapping with base: and what differs")
    return values


def names(kind: str) -> tuple[str, ...]:
    """Names of all records of a kind: accelerators, models, drafters or engines."""
    if kind not in _KINDS:
        raise CatalogError(_unknown("kind of record", kind, list(_KINDS)))
    return tuple(sorted({record.get("name", file) for file, record in _files(kind)}))


def called(kind: str, last_part: str) -> str | None:
    """The one record of a kind whose name, id or alias ends in `/LAST_PART`; None if none or several do."""
    end = "/" + last_part.lower()
    files = {values.get("name", file) for key, (file, values) in _entries(kind).items() if key.endswith(end)}
    return str(files.pop()) if len(files) == 1 else None


@cache
def _files(kind: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """What the files of a kind say, by file name."""
    paths = sorted((Path(__file__).parent / "catalog" / kind).glob("*.yaml"))
    return tuple((path.name, yaml.load(path.read_text(encoding="utf-8"), _SAFE_LOADER)) for path in paths)


@cache
def _entries(kind: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Files by lower-case name, Hugging Face id and alias of the record; those that change another last."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, values in sorted(_files(kind), key=lambda file: "base" in file[1]):
        for key in (values.get("name", name), values.get("hf_id", ""), *values.get("aliases", ())):
            if key:
                found[key.lower()] = name, values
    return found


@cache
def _record(kind: str, name: str) -> Any:
    """The record of a lower-case name. A file may change another record (`base`).

    Only what is asked for is built: every command would wait for the whole catalogue.
    """
    file, values = _entries(kind)[name]
    own_name = str(values.get("name", file)).lower()
    if own_name != name:
        return _record(kind, own_name)
    if "base" in values:
        own = {"aliases": [], **values}
        return _changed(_record(kind, values["base"].lower()), own, "base", file)
    if "config" in values:
        return _from_config(values, file)
    makes_head = kind == "drafters" and MAKERS.keys() & values.keys()
    return _made(values) if makes_head else _build(_KINDS[kind], values, file)


def forget() -> None:
    """Makes the next look-up read the files again."""
    for kept in (_files, _entries, _record):
        kept.cache_clear()


def _from_config(values: Mapping[str, Any], where: str) -> ModelSpec:
    """A model whose layers are of several kinds: `config` holds the keys of its `config.json` that count."""
    read = _guard(lambda: model_from_config(values["config"], name=values["name"], source=values["source"]))
    return _changed(read, values, "config", where)


def _made(reference: Mapping[str, Any]) -> DrafterSpec:
    """`{eagle3_for: MODEL, key: value}`: the usual head for a model, then the changes."""
    form = next(iter(MAKERS.keys() & reference.keys()))
    target = model(reference[form])
    return _changed(_guard(lambda: MAKERS[form](target)), reference, form)


def _changed(record: _R, reference: Mapping[str, Any], apart: str, where: str = "") -> _R:
    """`record` with the values of a mapping, the key `apart` left out."""
    changes = {key: value for key, value in reference.items() if key != apart}
    checked = _checked(type(record), changes, where or apart)
    if isinstance(record.source, Mapping) and "source" in checked:
        checked["source"] = {**record.source, **checked["source"]}
    return _guard(lambda: replace(record, **checked))


def _resolve(kind: str, cls: type[_R], reference: Reference) -> _R:
    label = kind.removesuffix("s")
    if isinstance(reference, str):
        if reference.lower() not in _entries(kind):
            other = f". {_OTHER_MODEL}" if kind == "models" else ""
            raise CatalogError(_unknown(label, reference, _known(kind)) + other)
        return _record(kind, reference.lower())  # type: ignore[no-any-return]
    if "base" not in reference:
        return _build(cls, {**_later(cls), **reference}, label)
    return _changed(_resolve(kind, cls, reference["base"]), reference, "base", label)


def _build(cls: type[_P], values: Mapping[str, Any], where: str) -> _P:
    """A record from a mapping: known keys only, none missing, right types, then the record's own checks."""
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    checked = _checked(cls, values, where)
    if missing := [key for key in required if key not in checked]:
        raise CatalogError(f"{where}: missing {', '.join(missing)}")
    return _guard(lambda: cls(**checked))


def _known(kind: str) -> list[str]:
    """Every name and alias of a kind, sorted."""
    records = [values for _, values in _files(kind)]
    return sorted({name for record in records for name in (record["name"], *record.get("aliases", ()))})


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
    if cls not in _HINTS:
        _HINTS[cls] = get_type_hints(cls)
    return _HINTS[cls]


_HINTS: dict[type[Any], dict[str, Any]] = {}


def _convert(hint: Any, value: Any, where: str) -> Any:
    """`value` as the annotated type; raises CatalogError saying what was expected."""
    if get_origin(hint) in (Union, UnionType):
        if value is None:
            return None
        hint = next(option for option in get_args(hint) if option is not type(None))
    if hint is ModelSpec:
        return value if isinstance(value, ModelSpec) else model(value)
    if hint is MemoryRules and isinstance(value, Mapping):
        return _build(MemoryRules, value, where)
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_convert(get_args(hint)[0], item, where) for item in value)
    if get_origin(hint) is Mapping and isinstance(value, Mapping):
        return {str(key): _convert(get_args(hint)[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= _MOST:
            raise CatalogError(f"{where} is {value:g}; give a finite number of at most {_MOST:g}")
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    expected = getattr(hint, "__name__", str(hint))
    raise CatalogError(f"{where} is {value!r}; expected {_PLAIN.get(expected, expected)}")


_SHOWN = 24
_MOST = 1e30
"""Of any figure of a record, whatever its unit."""
_PLAIN = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}


def _guard(make: Callable[[], _P]) -> _P:
    """Run `make`; what a record objects to becomes a CatalogError."""
    try:
        return make()
    except ValueError as error:
        raise CatalogError(str(error)) from None


def _unknown(what: str, name: object, known: list[str]) -> str:
    by_lower = {key.lower(): key for key in known}
    close = [by_lower[key] for key in get_close_matches(str(name).lower(), by_lower, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known: {_some(known)}"
    return f"unknown {what} {name!r}; {hint}"


def _some(known: list[str]) -> str:
    """A list that stays readable: what is short enough to be typed, up to a dozen."""
    short = [name for name in known if "/" not in name] or known
    shown = ", ".join(short[:_SHOWN])
    return f"{shown} and {len(short) - _SHOWN} more (specfleet catalog)" if len(short) > _SHOWN else shown
