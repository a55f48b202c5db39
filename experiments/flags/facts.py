"""What a model's `config.json` says, wherever it lies: a path, a folder of configs, the Hugging Face cache.

Nothing is fetched. A folder of configs holds them as `org/name/config.json`, as `org--name.json`, or in the
layout of the Hugging Face cache.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specfleet.experiments.flags.faults import LineFault

_LENGTH_KEYS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length"),
)
_PLAIN_ROPE = ("default", "linear", "llama3", "")
"""Rotary positions that can be computed for any length, as vLLM raises an EAGLE head's."""


@dataclass(frozen=True)
class Config:
    """A parsed `config.json`.

    Attributes:
        name: as the user named the model.
        values: the file's own.
        path: where it lies; None where the values came from elsewhere.
        beside: the `hf_quant_config.json` next to it.
    """

    name: str
    values: Mapping[str, Any]
    path: Path | None = None
    beside: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> Mapping[str, Any]:
        """The values of the language model in it."""
        for key in ("text_config", "transformer_layer_config", "llm_config", "thinker_config"):
            inner = self.values.get(key)
            if isinstance(inner, dict):
                return {**self.values, **(inner.get("text_config") or inner)}
        return self.values

    @property
    def architecture(self) -> str:
        """The first of `architectures`."""
        named = self.values.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else ""

    @property
    def model_type(self) -> str:
        """`model_type` of the whole."""
        return str(self.values.get("model_type", ""))

    @property
    def rope(self) -> Mapping[str, Any]:
        """How rotary positions are scaled."""
        for key in ("rope_parameters", "rope_scaling"):
            said = self.text.get(key)
            if isinstance(said, dict) and said:
                return said
        return {}

    @property
    def rope_type(self) -> str:
        """`default`, `linear`, `yarn`, ...; empty where nothing is said."""
        return str(self.rope.get("rope_type", self.rope.get("type", "")))

    @property
    def plain_positions(self) -> bool:
        """Whether vLLM can raise its positions to any length."""
        return self.rope_type in _PLAIN_ROPE

    def positions(self, yarn_lengthens: bool = False) -> int | None:
        """Longest sequence by default, tokens; YaRN's factor counts in older builds only."""
        found = [v for key in _LENGTH_KEYS if isinstance(v := self.text.get(key), int)]
        if not found:
            return None
        factor, kind = self.rope.get("factor", 1.0), self.rope_type
        if kind in ("linear", "dynamic") and isinstance(factor, int | float):
            return int(min(found) * factor)
        original = self.rope.get("original_max_position_embeddings", min(found))
        if kind == "yarn" and yarn_lengthens and isinstance(factor, int | float):
            return int(original * factor)
        return min(found)

    @property
    def vocab_size(self) -> int | None:
        """Tokens of the vocabulary."""
        value = self.text.get("vocab_size")
        return value if isinstance(value, int) else None

    @property
    def quantization(self) -> str | None:
        """How the checkpoint is quantized, by vLLM's name."""
        said = self.values.get("quantization_config") or self.text.get("quantization_config")
        if not isinstance(said, dict):
            producer = self.beside.get("producer")
            return "modelopt" if self.beside and producer is not None else None
        method = str(said.get("quant_method", "")).lower()
        if method == "mxfp4" and self.architecture == "GptOssForCausalLM":
            return "gpt_oss_mxfp4"
        if method == "fp8" and self.model_type.startswith("deepseek_v4"):
            return "deepseek_v4_fp8"
        return method or None

    @property
    def kv_cache_dtype(self) -> str | None:
        """The KV type that a ModelOpt checkpoint brings; None where it says nothing."""
        said = self.values.get("quantization_config") or self.beside.get("quantization") or {}
        inner = said.get("quantization") if isinstance(said, dict) else None
        for block in (said, inner):
            if isinstance(block, dict):
                algorithm = block.get("kv_cache_quant_algo")
                scheme = block.get("kv_cache_scheme")
                if str(algorithm).upper() == "FP8":
                    return "fp8"
                modelopt = str(block.get("quant_method", "")).lower() == "modelopt"
                if modelopt and isinstance(scheme, dict) and scheme.get("num_bits") == 8:
                    return "fp8"
        return None


class Configs:
    """Finds configs by the names of models.

    Args:
        folders: looked through first; then the local Hugging Face cache, if `cache`.
    """

    def __init__(self, folders: Sequence[Path] = (), cache: bool = True) -> None:
        self.folders = [*folders, *(_caches() if cache else ())]

    def find(self, name: str) -> Config | None:
        """The config of a model; None where there is none."""
        for path in self._places(name):
            if path.is_file():
                return _read(name, path)
        return None

    def _places(self, name: str) -> Iterator[Path]:
        here = Path(name).expanduser()
        yield here / "config.json"
        if here.suffix == ".json":
            yield here
        flat = name.strip("/").replace("/", "--")
        for folder in self.folders:
            yield folder / name / "config.json"
            yield folder / f"{flat}.json"
            yield folder / flat / "config.json"
            yield from sorted(folder.glob(f"models--{_literal(flat)}/snapshots/*/config.json"))


def _literal(name: str) -> str:
    """A name without a meaning to glob."""
    return "".join(f"[{mark}]" if mark in "*?[" else mark for mark in name)


def _caches() -> list[Path]:
    """Where Hugging Face keeps what was downloaded."""
    hub = os.environ.get("HF_HUB_CACHE")
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    return [Path(hub).expanduser() if hub else home / "hub"]


def _read(name: str, path: Path) -> Config:
    beside = path.with_name("hf_quant_config.json")
    more = _values(beside) if beside.is_file() else {}
    return Config(name, _values(path), path, more)


def _values(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LineFault("config", "model", f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise LineFault("config", "model", f"{path}: not JSON ({error})") from None
    if not isinstance(values, dict):
        raise LineFault("config", "model", f"{path}: no mapping; give a model's config.json")
    return values


def is_path(name: str) -> bool:
    """Whether a model is named by where it lies."""
    return name.startswith(("/", "./", "../", "~"))


def absent(name: str) -> LineFault:
    """A model of which nothing is known, and how to get its config."""
    get = (
        "copy it to a folder here and name that"
        if is_path(name)
        else f"get it (hf download {name} config.json) and name its folder"
    )
    said = f"{name} is in no catalogue and its config.json not on this machine; {get} with --models"
    return LineFault("unknown_model", "model", said)
