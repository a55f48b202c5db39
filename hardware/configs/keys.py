"""Values of a `config.json`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specfleet.hardware.model import MOST

Config = Mapping[str, Any]

SHOWN = 60
"""Characters of a value in a message."""


class ConfigError(ValueError):
    """A `config.json` that cannot be turned into a model; says which key or layer is the reason."""


def first(config: Config, *keys: str) -> str:
    """The first of the keys that has a value; the first of all where none has."""
    return next((key for key in keys if config.get(key) is not None), keys[0])


def count(config: Config, key: str, default: int | None = None, *, least: int = 0, most: int = MOST) -> int:
    """A whole number within limits; ConfigError for anything else."""
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        said = "missing" if value is None else repr(value)[:SHOWN]
        raise ConfigError(f"{key} is {said}; expected a whole number")
    if not least <= value <= most:
        raise ConfigError(f"{key} is {value:g}; use {least} to {most}")
    return value


def listed(config: Config, key: str) -> list[Any]:
    """A list, empty where it is not given; ConfigError for anything else, and for lists in it."""
    value = config.get(key)
    if not value:
        return []
    if not isinstance(value, list) or any(isinstance(entry, list | dict) for entry in value):
        raise ConfigError(f"{key} is {repr(value)[:SHOWN]}; expected a list")
    return value


def block(config: Config, key: str) -> Config:
    """A mapping inside, empty where it is not given; ConfigError for anything else."""
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{key} is {repr(value)[:SHOWN]}; expected a mapping")
    return value


def by_layer(config: Config, key: str, layers: int) -> list[int]:
    """One whole number a layer: a list of that length, or one number for all."""
    value = config.get(key)
    if isinstance(value, list):
        if len(value) < layers:
            raise ConfigError(f"{key} has {len(value)} entries for {layers} layers")
        return [count({key: entry}, key) for entry in value[:layers]]
    return [count(config, key)] * layers
