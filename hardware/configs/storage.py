"""How a checkpoint stores each module: quantization blocks wherever they are written, exclusions by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import translate
from typing import Any, NamedTuple

from specfleet.hardware.configs.keys import Config, ConfigError, block
from specfleet.hardware.layers.formats import SIXTEEN

PREFIXES = ("model.layers", "model.language_model.layers", "language_model.model.layers", "backbone.layers")
"""What stands before a layer's number in checkpoints."""

MODELOPT = {
    "FP8": "fp8", "NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4", "W4A16_AWQ": "int4_g128", "W4A8_AWQ": "int4_g128",
    "INT8_SQ": "int8", "W8A8_SQ_PER_CHANNEL": "int8", "FP8_PB_WO": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_BLOCK": "fp8", "MXFP8": "mxfp8", "MXFP4": "mxfp4", "W4A8_MXFP4_FP8": "mxfp4",
    "W4A8_NVFP4_FP8": "nvfp4",
    "FP8_PER_CHANNEL_PER_TOKEN_WO": "fp8",
}  # fmt: skip
"""NVIDIA ModelOpt's names of formats."""


class Group(NamedTuple):
    """Modules stored in one format: None takes every linear layer, otherwise those that match."""

    targets: Names | None
    stored: str


class Names:
    """Patterns of module names: whole names, parts of names, shell patterns, regular expressions."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Sort them by kind, those that name a layer by its number."""
        self._plain: set[str] = set()
        self._numbered: dict[str, list[re.Pattern[str]]] = {}
        self._any: list[re.Pattern[str]] = []
        for pattern in patterns:
            if pattern.startswith("re:"):
                self._file(pattern, re.compile(pattern[3:].lstrip("^")))
            elif any(mark in pattern for mark in "*?["):
                self._file(pattern, re.compile(translate(pattern)[:-2] + r"(\..*)?\Z"))
            else:
                self._plain.add(_bare(pattern))

    def _file(self, pattern: str, compiled: re.Pattern[str]) -> None:
        number = re.search(r"layers\\?\.(\d+)\\?(\.|\*|$)", pattern)
        (self._numbered.setdefault(number[1], []) if number else self._any).append(compiled)

    def match(self, layer: int, modules: Iterable[str]) -> bool:
        """Whether any name of a layer's module, under any usual prefix, is meant."""
        numbered = (*self._numbered.get(str(layer), ()), *self._any)
        for module in modules:
            parts = f"layers.{layer}.{module}".split(".")
            if any(
                ".".join(parts[start:end]) in self._plain
                for start in range(len(parts))
                for end in range(start + 1, len(parts) + 1)
            ):
                return True
            names = [f"{prefix}.{layer}.{module}" for prefix in PREFIXES]
            if any(pattern.match(name) for pattern in numbered for name in names):
                return True
        return False


def _bare(pattern: str) -> str:
    """A name from its layers on, without what stands before."""
    found = re.search(r"(^|\.)layers\.\d+(\.|$)", pattern)
    start = pattern.find("layers.", found.start()) if found else 0
    return pattern[start:].removesuffix(".weight")


class Storage(NamedTuple):
    """What a checkpoint says of its weights: groups in order, what stays in 16 bits, its KV type.

    `experts` is a format of routed experts apart from the rest, `method` the name of the method;
    `fp8_by_block`: FP8 weights have a scale a block, not one a channel or a tensor.
    """

    groups: tuple[Group, ...]
    ignored: Names
    experts: str | None = None
    method: str | None = None
    kv_cache_dtype: str = "auto"
    fp8_by_block: bool = True

    def of(self, layer: int, role: str, modules: tuple[str, ...]) -> str:
        """The format of a part of a layer, by its modules' names (the first that is known decides)."""
        if self.ignored.match(layer, modules):
            return SIXTEEN
        if role == "experts" and self.experts:
            return self.experts
        for group in self.groups:
            if group.targets is None or group.targets.match(layer, modules):
                return group.stored
        return SIXTEEN


NOTHING = Storage((), Names(()))
"""A checkpoint in 16 bits."""


def storage_of(config: Config, beside: Config | None) -> Storage:
    """What `config.json`, its text part and the `hf_quant_config.json` beside it say.

    Raises ConfigError, naming method or format, for one that is not modelled.
    """
    inside = [config, *(part for part in config.values() if isinstance(part, dict))]
    written = [
        part[key] for part in inside for key in _BLOCKS if isinstance(part.get(key), dict) and part[key]
    ]
    if not written and not beside:
        return NOTHING
    quantization = (
        written[0] if written else {"quant_method": "modelopt", **block(beside or {}, "quantization")}
    )
    found = _read(quantization, config)
    if beside and written:
        more = _read({"quant_method": "modelopt", **block(beside, "quantization")}, config)
        found = more._replace(method=found.method, kv_cache_dtype=found.kv_cache_dtype)
    if beside and not written:
        known = block(beside, "producer").get("name") == "modelopt"
        found = found if known else found._replace(method=None, kv_cache_dtype="auto")
    return found


KEPT = {"kimi_k3": ["re:.*routed_expert_(down|up)_proj.*"]}
"""Modules in 16 bits by the tensors of the published files, although the list in the file omits them."""

_BLOCKS = ("quantization_config", "compression_config")


def _read(block_: Config, config: Config) -> Storage:
    method = str(block_.get("quant_method") or "").lower()
    if not method:
        method = "modelopt" if block_.get("quant_algo") else "compressed-tensors"
    reader = _METHODS.get(method)
    if reader is None:
        known = ", ".join(sorted(_METHODS))
        raise ConfigError(f"weights stored by {method!r} are not modelled; known methods: {known}")
    found = reader(block_, config)
    named = bool(block_.get("quant_method"))
    return found._replace(
        method=method if named else None, kv_cache_dtype=found.kv_cache_dtype if named else "auto"
    )


def _names(*lists: Any) -> Names:
    return Names(str(entry) for entries in lists if isinstance(entries, list) for entry in entries)


def _fp8(block_: Config, config: Config) -> Storage:
    text = block(config, "text_config") or config
    experts = "mxfp4" if text.get("expert_dtype", config.get("expert_dtype")) == "fp4" else None
    ignored = _names(block_.get("modules_to_not_convert"), block_.get("ignored_layers"))
    by_block = bool(block_.get("weight_block_size"))
    return Storage((Group(None, "fp8"),), ignored, experts, fp8_by_block=by_block)


def _mxfp4(block_: Config, config: Config) -> Storage:
    return Storage((Group(Names(("experts",)), "mxfp4"),), _names(block_.get("modules_to_not_convert")))


def _weights_only(block_: Config, config: Config) -> Storage:
    """AWQ, GPTQ, AutoRound: `bits` and `group_size`, a zero point with AWQ and asymmetric GPTQ."""
    bits, group = (
        block_.get("bits", block_.get("w_bit", 4)),
        block_.get("group_size", block_.get("q_group_size", 128)),
    )
    if not isinstance(bits, int) or not isinstance(group, int) or not 2 <= bits <= 8:
        raise ConfigError(
            f"quantization_config: bits {bits!r} and group_size {group!r} are no whole numbers from 2"
        )
    zero = block_.get("zero_point", block_.get("sym") is False)
    stored = f"int{bits}_g{max(0, group)}{'z' if zero else ''}"
    off = [re.sub(r"^-:", "re:.*", key) for key in block(block_, "dynamic") if key.startswith("-:")]
    ignored = _names(block_.get("modules_to_not_convert"), off)
    return Storage((Group(None, stored),), ignored)


def _bitsandbytes(block_: Config, config: Config) -> Storage:
    stored = "nf4" if block_.get("load_in_4bit") else "int8"
    return Storage((Group(None, stored),), _names(block_.get("llm_int8_skip_modules")))


def _compressed(block_: Config, config: Config) -> Storage:
    groups, weights = [], list[Config]()
    for group in block(block_, "config_groups").values():
        if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
            raise ConfigError("quantization_config: a group of config_groups has no weights")
        targets = group.get("targets") or ["Linear"]
        whole = any(target in ("Linear", "FusedMoE", "RoutedExperts") for target in targets)
        weights.append(group["weights"])
        groups.append(Group(None if whole else _names(targets), _by_scheme(group["weights"], block_)))
    if not groups and block_.get("format") == "mxfp4-pack-quantized":
        groups = [Group(None, "mxfp4")]
    if not groups:
        raise ConfigError("quantization_config has no config_groups; there the weights' type stands")
    kept = _names(block_.get("ignore"), KEPT.get(str(config.get("model_type"))))
    eight = [each for each in weights if (each.get("num_bits"), each.get("type")) == (8, "float")]
    by_block = all(each.get("strategy") == "block" or each.get("block_structure") for each in eight)
    return Storage(tuple(groups), kept, kv_cache_dtype=_kv(block_), fp8_by_block=by_block)


def _by_scheme(weights: Config, block_: Config) -> str:
    """compressed-tensors: bits, type and group of a group's weights."""
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size") or 0
    form = str(block_.get("format") or "")
    if kind == "float" and bits == 8:
        return "mxfp8" if group == 32 or form.startswith("mxfp8") else "fp8"
    if kind == "float" and bits == 4:
        return "mxfp4" if group == 32 or form.startswith("mxfp4") else "nvfp4"
    if kind == "int" and isinstance(bits, int) and 2 <= bits <= 8 and isinstance(group, int):
        active = any(
            isinstance(entry, dict) and entry.get("input_activations")
            for entry in block(block_, "config_groups").values()
        )
        if bits == 8 and active:
            return "int8"
        return f"int{bits}_g{max(0, group)}{'' if weights.get('symmetric', True) else 'z'}"
    raise ConfigError(f"weights stored as {kind} of {bits} bits are not modelled")


def _modelopt(block_: Config, config: Config) -> Storage:
    inner = {**block_, **block(block_, "quantization")}
    algo = str(inner.get("quant_algo") or "").upper()
    ignored = _names(inner.get("exclude_modules"), inner.get("ignore"))
    kv = _kv(inner)
    if algo in ("MIXED_PRECISION", "MIXED"):
        named: Mapping[str, Any] = block(inner, "quantized_layers")
        by_format: dict[str, list[str]] = {}
        for module, entry in named.items():
            by_format.setdefault(_algo(str(entry.get("quant_algo"))), []).append(module)
        if not named and inner.get("config_groups"):
            return _compressed(inner, config)._replace(kv_cache_dtype=kv)
        groups = tuple(Group(Names(modules), stored) for stored, modules in by_format.items())
        algos = [str(entry.get("quant_algo")).upper() for entry in named.values()]
        return Storage(groups, ignored, kv_cache_dtype=kv, fp8_by_block=all(map(_by_block, algos)))
    if not algo and inner.get("config_groups"):
        return _compressed(inner, config)._replace(kv_cache_dtype=kv)
    return Storage((Group(None, _algo(algo)),), ignored, kv_cache_dtype=kv, fp8_by_block=_by_block(algo))


def _by_block(algo: str) -> bool:
    """Whether FP8 of a name of ModelOpt's has scales by block; so do other formats, which have no FP8."""
    return MODELOPT.get(algo) != "fp8" or algo in ("FP8_PB_WO", "FP8_BLOCK")


def _algo(name: str) -> str:
    stored = MODELOPT.get(name.upper())
    if stored is None:
        raise ConfigError(f"quant_algo {name!r} is not modelled; known: {', '.join(sorted(MODELOPT))}")
    return stored


def _kv(block_: Config) -> str:
    """The KV type that a checkpoint brings: FP8 where it says so."""
    said = block_.get("kv_cache_quant_algo") or block_.get("kv_cache_scheme")
    if isinstance(said, dict):
        return "fp8_e4m3" if (said.get("num_bits"), said.get("type")) == (8, "float") else "auto"
    return "fp8_e4m3" if str(said).upper() == "FP8" else "auto"


def _quark(block_: Config, config: Config) -> Storage:
    """AMD Quark: one configuration of weights for all, a list of what is left out."""
    weights = block(block(block_, "global_quant_config"), "weight")
    kind = str(weights.get("dtype") or "")
    known = {"fp8_e4m3": "fp8", "fp4": "mxfp4", "int8": "int8", "int4": "int4_g128", "uint4": "int4_g128z"}
    if kind not in known:
        raise ConfigError(f"quark weights of dtype {kind!r} are not modelled; known: {', '.join(known)}")
    by_block = kind != "fp8_e4m3" or weights.get("qscheme") == "per_block"
    return Storage((Group(None, known[kind]),), _names(block_.get("exclude")), fp8_by_block=by_block)


_METHODS = {
    "fp8": _fp8, "fbgemm_fp8": _fp8, "deepseek_v4_fp8": _fp8, "mxfp4": _mxfp4, "gpt_oss_mxfp4": _mxfp4,
    "awq": _weights_only, "awq_marlin": _weights_only, "gptq": _weights_only, "gptq_marlin": _weights_only,
    "auto-round": _weights_only, "auto_round": _weights_only, "intel/auto-round": _weights_only,
    "bitsandbytes": _bitsandbytes, "compressed-tensors": _compressed, "modelopt": _modelopt,
    "modelopt_fp4": _modelopt, "modelopt_mixed": _modelopt, "nvfp4": _modelopt, "quark": _quark,
}  # fmt: skip
"""Readers by `quant_method`."""
