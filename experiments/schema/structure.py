"""From plain values to the models of `schema.py`, and from pydantic's complaints to the user's words."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from specfleet.experiments.flags.table import flags
from specfleet.experiments.schema.blocks.acceptance import Process
from specfleet.experiments.schema.blocks.base import Block
from specfleet.experiments.schema.blocks.deployment import ReplicaPool
from specfleet.experiments.schema.blocks.described import descriptions
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.own import unknown
from specfleet.experiments.schema.blocks.workload import TrafficClass
from specfleet.experiments.schema.faults import closest, did_you_mean
from specfleet.experiments.schema.registry import OWN, parameters
from specfleet.experiments.schema.yamlfile import KeyPath, Value

_ELSEWHERE = {
    "enforce_eager": "running without CUDA graphs is not modelled yet; remove it",
    "enable_lora": "LoRA is not modelled yet; remove it",
    "cpu_offload_gb": "offloading is not modelled yet; remove it",
    "kv_transfer_config": "disaggregated serving is not modelled yet; remove it",
    "stream_interval": "tokens are streamed as they come, stream_interval 1; remove it",
    "random_input_len": "unknown key; did you mean input_len?",
    "random_output_len": "unknown key; did you mean output_len?",
    "dataset_path": "unknown key; did you mean trace?",
    "dataset_name": "unknown key; give preset, trace, or input and output",
    "goodput": "unknown key; limits go to slo: as ttft_ms, tpot_ms, e2el_ms",
    "<<": "YAML 1.2 has no merge key; write the keys out",
}
"""Keys users bring from elsewhere, and what to do with each."""

_STAND_IN: dict[KeyPath, Value] = {
    ("serve",): {"model": "?", "gpu": "?"},
    ("serve", "model"): "?",
    ("serve", "gpu"): "?",
    ("workload",): {},
}
"""What takes the place of a required value at fault, so that the rest can be checked."""


MOST_EXPLAINED = 200
"""Faults that are looked at closely; a file with more has another problem than a mistyped key."""

_LONGEST_SHOWN = 80
"""Characters of a value in a message."""

_Gone: TypeAlias = "dict[str | int, _Gone] | None"
"""Keys to leave out, by step; None where all of it goes."""

_NO_KEYS = ("<process>", "<classes>", "<number>", "<text>", "<mapping>", "[key]")
"""What pydantic puts into the place of a fault besides keys: tags of the schema's unions, mark of keys."""


@dataclass(frozen=True)
class Finding:
    """Something wrong with a value: `path` of the key, and what is wrong; what to do."""

    path: KeyPath
    message: str


@dataclass(frozen=True)
class Checked:
    """What of some values is sound.

    Args:
        experiment: the sound part, stand-ins where a required value is not.
        data: the same as plain values.
        findings: what is wrong.
        unsound: keys left out, and keys that were probably meant by unknown ones.
    """

    experiment: Experiment
    data: dict[str, Value]
    findings: list[Finding] = field(default_factory=list)
    unsound: frozenset[KeyPath] = frozenset()

    def is_sound(self, path: KeyPath) -> bool:
        """Whether neither the key, nor anything around or in it, was left out."""
        around = (path[:length] for length in range(len(path) + 1))
        return path not in self._holding_unsound and not any(one in self.unsound for one in around)

    @functools.cached_property
    def _holding_unsound(self) -> frozenset[KeyPath]:
        """Everything around what was left out."""
        return frozenset(bad[:length] for bad in self.unsound for length in range(len(bad)))


def check(data: dict[str, Value]) -> Checked:
    """Everything wrong with single values; keys at fault are left out until the rest is an experiment."""
    findings: list[Finding] = []
    unsound: set[KeyPath] = set()
    while True:
        try:
            return Checked(Experiment.model_validate(data), data, findings, frozenset(unsound))
        except ValidationError as error:
            said = [(details, _path(details, data)) for details in error.errors(include_url=False)]
            before, data = data, without(data, [_culprit(details, path) for details, path in said])
            if data == before:
                data = without(data, [path[:1] for _, path in said])
            if data == before:
                raise
            findings += _found(said, unsound)


def _found(said: list[tuple[ErrorDetails, KeyPath]], unsound: set[KeyPath]) -> Iterator[Finding]:
    """What is newly wrong; notes it, and what goes with it, as unsound."""
    holding = {path[:length] for _, path in said for length in range(len(path))}
    for number, (details, path) in enumerate(said):
        only_follows = details["type"] == "too_short" and path in holding
        plain = number >= MOST_EXPLAINED
        if path not in unsound and not only_follows:
            yield Finding(path, _message(details, path, plain))
        unsound |= {path, _culprit(details, path), *(() if plain else _meant(details, path))}


def _path(details: ErrorDetails, data: Value) -> KeyPath:
    """Where the fault is in the data; pydantic's names of union members are no keys."""
    path: list[str | int] = []
    for part in details["loc"]:
        inside = data.get(part, data) if isinstance(data, dict) and isinstance(part, str) else data
        if isinstance(data, tuple) and isinstance(part, int) and part < len(data):
            inside = data[part]
        if inside is not data or part not in _NO_KEYS:
            path.append(part)
        data = inside
    return tuple(path)


def _culprit(details: ErrorDetails, path: KeyPath) -> KeyPath:
    """The key to leave out: a list goes as a whole, and so does a block that lacks a key, or whose other keys
    are parameters of a process that nobody knows."""
    lacks = details["type"] == "missing" and isinstance(path[-1], str) and path not in _STAND_IN
    if lacks or (details["type"] == "unregistered" and path[-1] == "process"):
        path = path[:-1]
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path


def _meant(details: ErrorDetails, path: KeyPath) -> Iterator[KeyPath]:
    """The key that an unknown one was probably meant to be."""
    if details["type"] == "extra_forbidden":
        key = str(path[-1])
        near = closest(key, known_keys(path[:-1]))
        if near:
            yield (*path[:-1], near)
        for home in homes().get(key, ()):
            yield (*home, key)


def without(data: dict[str, Value], paths: Iterable[KeyPath]) -> dict[str, Value]:
    """A copy of the values that lacks some keys, or has their stand-ins; list entries keep their place."""
    gone: dict[str | int, _Gone] = {}
    stood_in = []
    for path in paths:
        if path in _STAND_IN:
            stood_in.append(path)
        elif path:
            _note(gone, path)
    left = _pruned(data, gone)
    assert isinstance(left, dict)
    for path in stood_in:
        left = replaced(left, path, _STAND_IN[path])
    return left


def _note(gone: dict[str | int, _Gone], path: KeyPath) -> None:
    """Notes a key that goes: the end of its path is None."""
    for part in path[:-1]:
        inside = gone.setdefault(part, {})
        if inside is None:
            return
        gone = inside
    gone[path[-1]] = None


def _pruned(value: Value, gone: dict[str | int, _Gone]) -> Value:
    """A value without the keys that go."""
    if isinstance(value, dict):
        return {
            key: _pruned(child, inside) if (inside := gone.get(key)) else child
            for key, child in value.items()
            if gone.get(key, {}) is not None
        }
    if isinstance(value, tuple):
        return tuple(_pruned(v, inside) if (inside := gone.get(i)) else v for i, v in enumerate(value))
    return value


def replaced(data: dict[str, Value], path: KeyPath, value: Value) -> dict[str, Value]:
    """A copy of the values with one changed; missing blocks on the way to it are made."""
    head = str(path[0])
    if len(path) == 1:
        return {**data, head: value}
    child = data.get(head)
    return {**data, head: replaced(child if isinstance(child, dict) else {}, path[1:], value)}


def shown(value: object) -> str:
    """A value as the user would write it, shortened."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, tuple | list):
        return "a list"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if isinstance(value, str):
        cut = len(value) > _LONGEST_SHOWN
        return repr(value[:_LONGEST_SHOWN]) + (f" (the first of {len(value)} characters)" if cut else "")
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _message(details: ErrorDetails, path: KeyPath, plain: bool = False) -> str:
    """What is wrong; what to do. A plain one has no suggestion for an unknown key."""
    if details["type"] == "extra_forbidden":
        return "unknown key; remove it" if plain else _unknown_key(path)
    if details["type"] == "missing":
        return _missing(path)
    return value_fault(details, details["input"])


def value_fault(details: ErrorDetails, given: object) -> str:
    """What is wrong with a value; what to do."""
    kind, context = details["type"], details.get("ctx", {})
    if kind == "literal_error":
        names = [
            part.strip().strip("'") for part in str(context["expected"]).replace(" or ", ", ").split(", ")
        ]
        if not isinstance(given, str):
            return f"must be one of {', '.join(names)}, not {shown(given)}"
        near = closest(given, names)
        hint = f"; did you mean {near}?" if near else ""
        return f"{shown(given)} is not supported; use one of {', '.join(names)}{hint}"
    if kind in ("json", "named", "unregistered"):
        return f"{details['msg']}, not {shown(given)}" if kind == "named" else f"{details['msg']}"
    template = _TEMPLATES.get(kind, "{msg}, not {given}")
    text = template.format(msg=details["msg"], given=shown(given), **context)
    return text + _hint(kind, given)


_TEMPLATES = {
    "int_type": "must be a whole number, not {given}",
    "int_from_float": "must be a whole number, not {given}",
    "float_type": "must be a number, not {given}",
    "bool_type": "must be true or false, not {given}",
    "string_type": "must be text, not {given}",
    "tuple_type": "must be a list, not {given}",
    "dict_type": "must be a mapping, not {given}",
    "model_type": "must be a mapping, not {given}",
    "model_attributes_type": "must be a mapping, not {given}",
    "finite_number": "must be a finite number, not {given}",
    "greater_than": "must be more than {gt:g}, not {given}",
    "greater_than_equal": "must be at least {ge:g}, not {given}",
    "less_than": "must be less than {lt:g}, not {given}",
    "less_than_equal": "must be at most {le:g}, not {given}",
    "too_short": "must have at least {min_length} entries, not {actual_length}",
    "too_long": "must have at most {max_length} entries, not {actual_length}",
    "string_pattern_mismatch": "{given} cannot name a folder; use letters, digits, dots, dashes, underscores",
}


def _hint(kind: str, given: object) -> str:
    """What to do about a value of the wrong type, where that is not plain."""
    if kind == "bool_type" and str(given).lower() in ("yes", "no", "on", "off", "true", "false"):
        word = "true" if str(given).lower() in ("yes", "on", "true") else "false"
        return f"; YAML 1.2 reads it as text, write {word}"
    if isinstance(given, str) and given.lower() in ("none", "null"):
        return "; write null for no value"
    if kind in ("int_type", "float_type") and isinstance(given, str):
        return "; write plain digits, without quotes, underscores or units"
    if kind == "int_type" and isinstance(given, float) and given.is_integer():
        return f"; write {given:.0f}"
    if kind in ("model_type", "dict_type") and given is None:
        return "; write its keys below it, or remove it"
    if kind == "tuple_type" and not isinstance(given, dict):
        return f"; write [{given}]" if given is not None else "; write [...]"
    return ""


def _missing(path: KeyPath) -> str:
    """A required key is not there: what it is for."""
    for block in _blocks_at(path[:-1]):
        about = " ".join(descriptions(block).get(str(path[-1]), "").split())
        if about:
            return f"is required; give {about[0].lower()}{about[1:].rstrip('.')}"
    return "is required; add it"


def _unknown_key(path: KeyPath) -> str:
    """An unknown key: how it is spelled, or where it belongs."""
    key, known = str(path[-1]), known_keys(path[:-1])
    plain = key.lstrip("-").replace("-", "_")
    if key in _ELSEWHERE:
        return _ELSEWHERE[key]
    if "-" in key and plain in known:
        return f"unknown key; keys are spelled with underscores, write {plain}"
    if path[:2] == ("serve", "speculative_config") and plain == "tensor_parallel_size":
        return "unknown key, to vLLM too; did you mean draft_tensor_parallel_size?"
    at_home = [".".join(home) for home in homes().get(plain, ())]
    if at_home and closest(key, known) is None:
        block = " or ".join(f"{home}:" if home else "the top level" for home in at_home)
        return f"unknown key here; {plain} belongs to {block}"
    if not known:
        return "unknown key; remove it"
    if path[:-1] == ("serve", "draft_policy"):
        return unknown(key, known)
    if path[:-1] == ("serve",) and closest(key, known) is None:
        near = closest(key, flags())
        advice = f"did you mean {near}?" if near else "remove it"
        return f"unknown key, and no flag of vllm serve; {advice}"
    return f"unknown key; {did_you_mean(key, known)}"


def _blocks_in(annotation: object) -> Iterator[type[Block]]:
    """The blocks an annotation speaks of."""
    if isinstance(annotation, type) and issubclass(annotation, Block):
        yield annotation
    for argument in get_args(annotation):
        yield from _blocks_in(argument)


def _blocks_at(path: KeyPath) -> list[type[Block]]:
    """The blocks that may be written at a path; places in a list, traffic classes and pools name no field."""
    current: list[type[Block]] = [Experiment]
    keys = [part for part in path if isinstance(part, str)]
    for above, part in zip(["", *keys], keys, strict=False):
        fields = [block.model_fields[part] for block in current if part in block.model_fields]
        if not fields and (above, current) in _BY_NAME:
            continue
        current = list(dict.fromkeys(b for field_ in fields for b in _blocks_in(field_.annotation)))
    return current


_BY_NAME: list[tuple[str, list[type[Block]]]] = [
    ("acceptance", [Process]),
    ("mix", [TrafficClass]),
    ("pools", [ReplicaPool]),
]
"""Keys below which names of traffic classes, or pools, stand, and the block of each."""


def known_keys(path: KeyPath) -> list[str]:
    """The keys of the block at a path; empty where there is none."""
    keys = [key for block in _blocks_at(path) for key in block.model_fields]
    if path == ("serve", "draft_policy"):
        keys += [name for kind, name in OWN if kind == "policy"]
    if path[:2] == ("serve", "draft_policy") and ("policy", path[-1]) in OWN:
        keys += parameters("policy", str(path[-1]))
    return keys


def is_key(path: KeyPath) -> bool:
    """Whether a path from the top names a key an experiment can have; keys of inline mappings count."""
    parent = path[:-1]
    if path[:2] == ("deployment", "pools") and len(path) > 2:
        inside = path[3:]
        own = inside[:1] in (("serve",), ("acceptance",)) and len(inside) > 1
        return is_key(inside) if own else not inside or inside[0] in ReplicaPool.model_fields
    if path[-1] in known_keys(parent):
        return True
    inline = parent in (("serve", "model"), ("serve", "gpu"), ("serve", "speculative_config", "model"))
    if parent == ("workload", "mix"):
        return True
    return inline or (parent == ("acceptance",) and path[-1] not in known_keys(()))


@functools.cache
def homes() -> dict[str, tuple[tuple[str, ...], ...]]:
    """Key -> the blocks that have it, top level first."""
    found: dict[str, list[tuple[str, ...]]] = {}
    queue: list[tuple[str, ...]] = [()]
    while queue:
        here = queue.pop(0)
        for key in known_keys(here):
            found.setdefault(key, []).append(here)
            if key not in ("plan", "pools", "mix"):
                queue.append((*here, key))
    return {key: tuple(blocks) for key, blocks in found.items()}
