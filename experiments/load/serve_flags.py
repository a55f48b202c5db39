"""Flags of `vllm serve` under their own names, as keys of `serve:`: what each becomes there.

Keys that the block has are kept, in its spelling; flags that change nothing are dropped and listed once; the
others are turned into keys that say the same, or refused with the reason.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specfleet.experiments.flags.resolve import SHORT_FORMS
from specfleet.experiments.flags.table import HARMLESS, Flag, flags
from specfleet.experiments.flags.values import length, size
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.serve import Serve, from_json
from specfleet.experiments.schema.faults import Fault
from specfleet.experiments.schema.lookups import found
from specfleet.experiments.schema.yamlfile import Document, Value
from specfleet.hardware.engine_profile import EngineProfile
from specfleet.hardware.layers.recurrent import GatedDelta, Lightning, Mamba, ShortConv
from specfleet.hardware.model import ModelSpec

NOT_VLLMS = tuple(name for name in Serve.model_fields if name not in flags())
"""Keys of `serve:` that vLLM does not have."""

_SUFFIXED = re.compile(r"[\d.]+[kKmMgGtT]|auto")
"""Sizes as vLLM spells them; plain digits in quotes stay text, as everywhere in a file."""

STATES = (GatedDelta, Lightning, Mamba, ShortConv)
"""Layers with a state a sequence."""

_SIZES = ("max_model_len", "max_num_batched_tokens", "kv_cache_memory_bytes")
_FP8 = ("fp8_e4m3", "fp8_e5m2", "fp8_inc")
_SAME = {
    "runner": ("generate",),
    "convert": ("none",),
    "model_impl": ("vllm",),
    "optimization_level": (2, 3, "2", "3"),
    "disable_cascade_attn": (True,),
    "disable_custom_all_reduce": (False,),
    "disable_hybrid_kv_cache_manager": (False,),
    "enable_lora": (False,),
    "enable_flashinfer_autotune": (True,),
    "mamba_cache_mode": ("none",),
    "dcp_q_replicate": (False,),
    "enable_batch_sharded_sampling": (False,),
}
"""Values that say what the default does, beside the default."""


@dataclass
class Taken:
    """What became of the flags.

    Attributes:
        serve: keys that the `serve:` block has.
        replicas: of the deployment, where data parallelism of a dense model asks for several.
        router: of the deployment, where data parallelism balances requests.
        balanced: what data parallelism comes to, but for the router.
        harmless: names of flags without effect.
        notices: one sentence each.
        faults: key -> what is wrong; what to do.
    """

    serve: dict[str, Value] = field(default_factory=dict)
    replicas: int | None = None
    router: str | None = None
    balanced: str = ""
    harmless: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def deployment(self) -> dict[str, Value]:
        """Keys of `deployment:` that the flags ask for."""
        asked: dict[str, Value] = {"router": self.router, "replicas": self.replicas}
        return {key: value for key, value in asked.items() if value is not None}

    def all_notices(self, router: str | None = None) -> list[str]:
        """The notices, with one for everything that has no effect, and one for ranks behind a router.

        Args:
            router: that the file names, in place of the engine's.
        """
        said = [f"without effect on the prediction: {', '.join(self.harmless)}"] if self.harmless else []
        if self.balanced:
            said.append(f"{self.balanced}, behind a {router or self.router} router")
        return [*said, *self.notices]


def with_flags(document: Document) -> tuple[Document, list[str]]:
    """A document whose `serve:` has keys of the block alone, and what is said of the others.

    Flags that are refused are faults of the document, each at its line.
    """
    serve = document.data.get("serve")
    if not isinstance(serve, dict):
        return document, []
    this = take(serve)
    data: dict[str, Value] = {**document.data, "serve": this.serve}
    deployment = data.get("deployment")
    own = deployment if isinstance(deployment, dict) else {}
    router = own.get("router")
    swept = _swept(document)
    if this.replicas is not None and (own.get("replicas", 1) != 1 or "deployment.replicas" in swept):
        this.faults["data_parallel_size"] = (
            f"of a model without experts is as many replicas, {this.replicas}, and deployment.replicas "
            "says how many, too; keep one"
        )
    elif this.router is not None or "serve.data_parallel_size" in swept:
        asked = this.deployment or {"router": _router(this.serve)}
        data["deployment"] = {**own, **asked} | ({"router": router} if router is not None else {})
    faults = []
    for key, message in this.faults.items():
        mark = document.mark(("serve", key))
        faults.append(Fault(mark.file, mark.line, f"serve.{key}", message))
    marks = dict(document.marks)
    for key in serve:
        marks["serve", _plain(key)] = document.mark(("serve", key))
    return Document(document.file, data, marks, (*document.faults, *faults)), this.all_notices(
        router if isinstance(router, str) else None
    )


def _swept(document: Document) -> Mapping[str, Value]:
    """The axes of a document, as far as they are any."""
    sweep = document.data.get("sweep")
    axes = sweep.get("axes") if isinstance(sweep, dict) else None
    return axes if isinstance(axes, dict) else {}


def _router(serve: Mapping[str, Value]) -> str:
    """How an engine's front end balances data-parallel ranks."""
    profile = found(lambda: lookups.engine(str(serve.get("engine", "vllm-0.33"))))
    sglang = profile is not None and profile.scheduler == "sglang"
    return "round_robin" if sglang else "least_outstanding"


def take(given: Mapping[str, Value]) -> Taken:
    """Sorts the keys of a `serve:` block, whatever vLLM flags are among them."""
    this = Taken()
    named = {_plain(key): (key, value) for key, value in given.items()}
    for name, (key, value) in _switched(named).items():
        flag = flags().get(name)
        if flag is None or name in NOT_VLLMS:
            this.serve[name if name in NOT_VLLMS else key] = value
        elif name in Serve.model_fields:
            _kept(this, name, value)
        elif flag.does == HARMLESS or value in (None, _value(flag.default), *_SAME.get(name, ())):
            this.harmless.append(name)
    _attention(this, named)
    model = found(lambda: lookups.model(given["model"])) if _named(given.get("model")) else None  # type: ignore[arg-type]
    _simulated(this, {name: value for name, (_, value) in named.items()}, model)
    for name, (key, value) in named.items():
        flag = flags().get(name)
        if flag is None or name in Serve.model_fields or name in this.harmless or name in SIMULATED:
            continue
        if not _counts(flag, named, model):
            this.harmless.append(name)
            continue
        this.faults[key] = f"is not simulated: {flag.why}; remove it"
        del value
    return this


def _attention(this: Taken, named: Mapping[str, tuple[str, Value]]) -> None:
    """`attention_backend: FLASH_ATTN` is vLLM's own choice from Ampere to Hopper, latent attention apart."""
    if named.get("attention_backend", ("", None))[1] != "FLASH_ATTN" or "attention_backend" in this.harmless:
        return
    gpu = named.get("gpu", ("", None))[1]
    accelerator = found(lambda: lookups.accelerator(gpu)) if _named(gpu) else None  # type: ignore[arg-type]
    served = named.get("model", ("", None))[1]
    model = found(lambda: lookups.model(served)) if _named(served) else None  # type: ignore[arg-type]
    if accelerator is not None and 8 <= accelerator.compute_capability < 10 and model is not None:
        this.harmless += [] if model.latent else ["attention_backend"]


def _plain(key: str) -> str:
    """A key in vLLM's own name."""
    name = key.lstrip("-").replace("-", "_")
    return "gpu_memory_utilization" if name == "device_memory_utilization" else name


def _named(value: object) -> bool:
    return isinstance(value, str | dict) and bool(value)


def _value(default: Any) -> Value:
    return tuple(default) if isinstance(default, list) else default


def _switched(named: dict[str, tuple[str, Value]]) -> dict[str, tuple[str, Value]]:
    """Switches under their off spelling as the flag switched off, in place."""
    off = {o.lstrip("-").replace("-", "_"): flag.name for flag in flags().values() for o in flag.off}
    for name in [name for name in named if name in off and name not in flags()]:
        key, value = named.pop(name)
        named[off[name]] = (key, not value if isinstance(value, bool) else value)
    return named


def _kept(this: Taken, name: str, value: Value) -> None:
    """A key that the block has, its value as the block takes it."""
    if name in _SIZES and isinstance(value, str) and _SUFFIXED.fullmatch(value):
        try:
            value = length(value) if name == "max_model_len" else size(value)
        except ArgumentTypeError as error:
            this.faults[name] = str(error)
            return
    if name == "max_model_len" and value == -1:
        value = None
    if name == "dtype" and value in ("auto", None):
        return
    if name == "dtype" and value == "half":
        value = "float16"
    if name == "kv_cache_dtype" and value in _FP8:
        value = "fp8"
    if name == "kv_cache_dtype" and value in ("bfloat16", "float16"):
        value = "auto"
    if value is None and Serve.model_fields[name].default is not None:
        return
    this.serve[name] = value


Change = Callable[[Taken, Value, ModelSpec | None], "str | None"]
"""Puts a flag's meaning into `Taken.serve`; returns what is wrong with its value."""


def _simulated(this: Taken, given: Mapping[str, Value], model: ModelSpec | None) -> None:
    """Flags that are said by other keys."""
    for name, change in SIMULATED.items():
        value = given.get(name)
        flag = flags()[name]
        if value is None or value == _value(flag.default):
            continue
        if (fault := change(this, value, model)) is not None:
            this.faults[name] = fault


def _speculative(field_: str) -> Change:
    def change(this: Taken, value: Value, model: ModelSpec | None) -> str | None:
        try:
            there = from_json(this.serve.get("speculative_config"))
        except ValueError:
            return None
        there = there if isinstance(there, dict) else {}
        if field_ in there:
            return f"{field_} stands in speculative_config too; keep one"
        this.serve["speculative_config"] = from_json({**there, field_: value})
        return None

    return change


def _performance_mode(this: Taken, value: Value, model: ModelSpec | None) -> str | None:
    if value != "throughput":
        return "interactivity has CUDA graphs for every size up to 32, which is not simulated; remove it"
    engine, gpu = this.serve.get("engine", "vllm-0.33"), this.serve.get("gpu")
    profile = found(lambda: lookups.engine(str(engine)))
    accelerator = found(lambda: lookups.accelerator(gpu)) if _named(gpu) else None  # type: ignore[arg-type]
    if isinstance(profile, EngineProfile) and accelerator is not None:
        seqs, tokens = profile.limits(accelerator)
        this.serve.setdefault("max_num_seqs", 2 * seqs)
        this.serve.setdefault("max_num_batched_tokens", 2 * tokens)
    return None


def _data_parallel(this: Taken, value: Value, model: ModelSpec | None) -> str | None:
    if not isinstance(value, int):
        return None
    this.router = _router(this.serve)
    shared = model is not None and bool(model.num_experts)
    ranks = "ranks that share the experts and step together" if shared else "replicas"
    this.balanced = f"data_parallel_size {value}: as many {ranks}, each with its own KV pool"
    if not shared:
        this.serve.pop("data_parallel_size", None)
        this.replicas = value
    return None


def _expert_parallel(this: Taken, value: Value, model: ModelSpec | None) -> str | None:
    if model is not None and not model.num_experts:
        this.serve.pop("enable_expert_parallel", None)
        this.harmless.append("enable_expert_parallel")
    return None


def _model_file(this: Taken, value: Value, model: ModelSpec | None) -> str | None:
    this.serve["model"] = {"hf_config": value}
    return None


def _changed_model(**changes: Value) -> Change:
    def change(this: Taken, value: Value, model: ModelSpec | None) -> str | None:
        _change(this, changes)
        return None

    return change


def _change(this: Taken, changes: Mapping[str, Value]) -> None:
    """The model with other values of its record."""
    named = this.serve.get("model")
    base: dict[str, Value] = named if isinstance(named, dict) else {"base": named}
    this.serve["model"] = {**base, **changes}


def _no_window(this: Taken, value: Value, model: ModelSpec | None) -> str | None:
    if model is None or not model.num_windowed_layers:
        this.harmless.append("disable_sliding_window")
        return None
    return "windowed layers made full are not simulated for a model read by kinds; remove it"


_OVERRIDES = {"max_position_embeddings": "max_position_embeddings", "vocab_size": "vocab_size"}


def _mapping(value: Value) -> dict[str, Value] | str:
    """The mapping that a value is or holds as JSON; else why there is none."""
    try:
        read = from_json(value)
    except ValueError as error:
        return str(error)
    return read if isinstance(read, dict) else "must be a mapping"


def _hf_overrides(this: Taken, value: Value, model: ModelSpec | None) -> str | None:
    given = _mapping(value)
    if isinstance(given, str):
        return given
    changes: dict[str, Value] = {}
    for key, child in given.items():
        if key in _OVERRIDES:
            changes[_OVERRIDES[key]] = child
        elif key.startswith("rope"):
            this.notices.append(
                "hf_overrides: rotary positions do not lengthen by themselves in vLLM 0.33; "
                "max_position_embeddings in hf_overrides does"
            )
        else:
            return f"{key} is not simulated; give the model inline, or remove it"
    if changes:
        _change(this, changes)
    return None


def _compilation(this: Taken, value: Value, model: ModelSpec | None) -> str | None:
    given = _mapping(value)
    if isinstance(given, str):
        return given
    mode = given.get("cudagraph_mode")
    if mode not in (None, "FULL_AND_PIECEWISE", "FULL", "FULL_DECODE_ONLY"):
        return f"cudagraph_mode {mode}: a step without full CUDA graphs has not been timed; remove it"
    for key in ("cudagraph_capture_sizes", "max_cudagraph_capture_size"):
        if given.get(key) is not None:
            this.serve[key] = given[key]
    this.harmless.append("the rest of compilation_config")
    return None


SIMULATED: Mapping[str, Change] = {
    **{name: _speculative(field_) for name, field_ in SHORT_FORMS.items()},
    "hf_config_path": _model_file,
    "hf_overrides": _hf_overrides,
    "language_model_only": _changed_model(vision_parameters=0),
    "disable_sliding_window": _no_window,
    "performance_mode": _performance_mode,
    "data_parallel_size": _data_parallel,
    "enable_expert_parallel": _expert_parallel,
    "compilation_config": _compilation,
    "model_tag": lambda this, value, model: None,
    "config": lambda this, value, model: "is a file of flags; give it to specfleet init --from",
}
"""Flags that other keys of `serve:` say."""


def _counts(flag: Flag, given: Mapping[str, object], model: ModelSpec | None) -> bool:
    """Whether a flag changes anything: what it belongs to must be there."""
    needs = flag.needs
    if not needs:
        return True
    if needs in flags():
        there = given.get(needs)
        value = there[1] if isinstance(there, tuple) else None
        return value is not None and value != _value(flags()[needs].default)
    if needs == "several GPUs":
        there = given.get("tensor_parallel_size")
        return isinstance(there, tuple) and there[1] != 1
    if model is None:
        return True
    return bool(
        {
            "images": model.vision_parameters,
            "experts": model.num_experts,
            "latent": model.kv_lora_rank,
            "windows": model.num_windowed_layers,
            "states": any(isinstance(mixer, STATES) for mixer in model.mixers),
        }[needs]
    )
