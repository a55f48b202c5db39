"""A Hugging Face `config.json`, with the `hf_quant_config.json` beside it, as a `ModelSpec`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specfleet.hardware.configs.keys import Config, ConfigError
from specfleet.hardware.configs.reader import model_of
from specfleet.hardware.model import ModelSpec

__all__ = ["ConfigError", "model_from_config", "read_hf_config"]

QUANT_FILE = "hf_quant_config.json"
"""What NVIDIA ModelOpt writes beside `config.json`."""


def read_hf_config(path: str | Path) -> ModelSpec:
    """The model that the `config.json` at `path` (the file or its folder) describes.

    A `hf_quant_config.json` beside it (or `NAME.hf_quant_config.json` beside `NAME.json`) is read, too.
    Raises ConfigError, naming the file, for a missing or broken file, an architecture without a cost model,
    a missing key, or a weight format that is not modelled.
    """
    file = Path(path)
    try:
        file = file / "config.json" if file.is_dir() else file
    except OSError as error:
        raise ConfigError(f"hf_config {file}: {error.strerror}") from None
    config = _read(file)
    beside = next((own for own in _beside(file) if own.is_file()), None)
    name = config.get("_name_or_path") or _name(file)
    try:
        found = _read(beside) if beside else None
        return model_of(config, found, name=str(name), source=f"read from {file}")
    except ConfigError as error:
        said = str(error)
        raise ConfigError(said if said.startswith("hf_config ") else f"hf_config {file}: {said}") from None
    except ValueError as error:
        raise ConfigError(f"hf_config {file}: {error}") from None


def model_from_config(config: Config, *, name: str, source: str, beside: Config | None = None) -> ModelSpec:
    """The model of a parsed `config.json`. Raises ValueError saying what is missing or not modelled."""
    return model_of(config, beside, name=name, source=source)


def _beside(file: Path) -> tuple[Path, ...]:
    whole = file.with_name(QUANT_FILE)
    return (file.with_name(f"{file.stem}.{QUANT_FILE}"), *((whole,) if file.name == "config.json" else ()))


def _name(file: Path) -> str:
    return file.resolve().parent.name if file.name == "config.json" else file.stem


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"hf_config {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"hf_config {file}: not JSON ({error})") from None
    if not isinstance(config, dict):
        raise ConfigError(f"hf_config {file}: not a mapping; give a model's config.json")
    return config
