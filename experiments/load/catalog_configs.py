"""Configs of models by name: `config.json` files on this machine, and what the catalogue knows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from specfleet.experiments.flags.facts import Config, Configs, absent, is_path
from specfleet.experiments.flags.faults import LineFault
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.lookups import found
from specfleet.hardware import catalog
from specfleet.hardware.model import DrafterSpec, ModelSpec

_IN_THE_CACHE = re.compile(r"models--([\w.-]+?)--([\w.-]+)")
"""A folder of the Hugging Face cache."""
_QUOTED = re.compile(r'"([^"]*)"')


class CatalogConfigs(Configs):
    """Configs on this machine, then what the catalogue knows of a model or drafter."""

    def find(self, name: str) -> Config | None:
        """The config of a model; None where there is none."""
        if (there := super().find(name)) is not None:
            return there
        model = found(lambda: lookups.model(name))
        if model is not None:
            return Config(name, of_model(model))
        drafter = found(lambda: lookups.drafter(name))
        return Config(name, of_drafter(drafter)) if drafter is not None and drafter.on_gpu else None


def without_paths(words: Sequence[str], configs: Configs) -> tuple[list[str], list[str]]:
    """A command's words with paths of models that are not on this machine as the models of their names.

    Args:
        words: of a command; `--flag=PATH` and texts of JSON are read too.
        configs: what is on this machine.

    Returns:
        the words, and one sentence for each that was replaced.
    """
    notes: list[str] = []

    def named(path: str) -> str:
        name = next(_named_by(path), None) if is_path(path) and configs.find(path) is None else None
        if name is None:
            return path
        notes.append(f"{path} is not on this machine: taken for {name}, by its name")
        return name

    found_ = []
    for word in words:
        if word.lstrip().startswith("{"):
            found_.append(_QUOTED.sub(lambda quoted: f'"{named(quoted[1])}"', word))
            continue
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        found_.append(flag + equals + named(value))
    return found_, notes


def _named_by(path: str) -> Iterator[str]:
    """The models and drafters that a path names: by a folder of the cache, or by its last part."""
    if match := _IN_THE_CACHE.search(path):
        yield f"{match[1]}/{match[2]}"
    last = PurePath(path).name
    yield from (name for kind in ("models", "drafters") if (name := catalog.called(kind, last)) is not None)


def of_model(model: ModelSpec) -> dict[str, Any]:
    """What a catalogue record says, in the names of a `config.json`."""
    values: dict[str, Any] = {
        "max_position_embeddings": model.max_position_embeddings,
        "vocab_size": model.vocab_size,
        "torch_dtype": "bfloat16",
        "architectures": ["GptOssForCausalLM" if "gpt-oss" in model.name.lower() else model.name],
    }
    if model.mtp_layers:
        values |= {"model_type": "deepseek_mtp", "num_nextn_predict_layers": model.mtp_layers}
    if model.checkpoint_quantization:
        values["quantization_config"] = {"quant_method": model.checkpoint_quantization}
    if model.rope.kind != "default":
        values["rope_scaling"] = {"rope_type": "llama3"}
    return values


def of_drafter(drafter: DrafterSpec) -> dict[str, Any]:
    """What a catalogue record of a head says, in the names of a `config.json`."""
    positions = drafter.max_model_len or (drafter.model.max_position_embeddings if drafter.model else 0)
    names = {"eagle3": "LlamaForCausalLMEagle3", "dflash": "DFlashDraftModel", "dspark": "Qwen3DSparkModel"}
    values: dict[str, Any] = {"architectures": [names.get(drafter.method, "LlamaForCausalLM")]}
    if drafter.method == "mtp":
        values |= {"model_type": "deepseek_mtp", "num_nextn_predict_layers": 1}
    if positions:
        values["max_position_embeddings"] = positions
    return values


def named_model(serve: dict[str, Any], configs: Configs) -> None:
    """The model by its catalogue name, else by the `config.json` on this machine."""
    name = serve["model"]
    if not isinstance(name, str) or found(lambda: lookups.model(name)) is not None:
        return
    config = configs.find(name)
    if config is None or config.path is None:
        raise absent(name)
    serve["model"] = {"hf_config": str(config.path)}
    try:
        lookups.model(serve["model"])
    except ValueError as error:
        raise LineFault("model", "model", str(error)) from None
