"""What was measured, and in which range: the one table that every sentence on trust is read off.

A row holds where every field of a run lies in its range. A subject of which no row holds is not backed, and
what lies outside the nearest row is said, a caveat a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from specfleet.experiments.point.build import SCHEDULER_RULES, placement
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.hardware import catalog
from specfleet.hardware.accelerator import Accelerator
from specfleet.hardware.constants import measured_file
from specfleet.hardware.engine_profile import EngineProfile
from specfleet.hardware.layers.attention import CompressedAttention, GroupedAttention, LatentAttention
from specfleet.hardware.layers.stack import Mixer
from specfleet.hardware.model import ModelSpec
from specfleet.hardware.placement import KV_TYPES, Placement

Range: TypeAlias = frozenset[object] | tuple[float, float]
"""The values that were measured, or the least and the most of them."""

KERNELS, SCHEDULER, HOST, SERVED = "kernel times", "scheduler decisions", "host", "served step times"
SUBJECTS = (KERNELS, SCHEDULER, SERVED, HOST)
OWN = "your own"


@dataclass(frozen=True)
class Used:
    """What a run used, as far as measurements tell it apart.

    Attributes:
        engine: the catalogue's profile; that of a profile of one's own if it schedules alike, else its name.
        kernels: whose kernels run: vllm, sglang, trtllm; `OWN` where the user measured them.
        fitted: whether host time was fitted to the user's own results.
        rules: whose scheduler decides: vllm or sglang.
        gpu: the catalogue's name; one that was changed is marked.
        h100: whether it is an H100 of any form.
        weights, kv: types of linear weights and of the KV cache.
        attention: full, windowed, latent, compressed or recurrent: the kind that was measured least.
        experts: whether it is a mixture of experts.
        parameters: of the target.
        link: one GPU, several that reach each other's memory (`peers`), or through the host (`host`).
        gpus: that a stage of a replica runs on.
        stages: of a pipeline.
        method: of drafting, `none` without.
        k: drafts a round.
        tree: whether they are a tree.
        context_tokens: mean prompt and output of a request together.
        batch: sequences at once.
    """

    engine: str
    kernels: str
    gpu: str
    weights: str
    kv: str
    attention: str
    experts: bool
    parameters: float
    link: str
    gpus: int
    stages: int
    method: str
    k: int
    tree: bool = False
    context_tokens: float = 0.0
    batch: float = 1.0
    fitted: bool = False
    rules: str = "vllm"
    h100: bool = False

    @property
    def drafts(self) -> bool:
        """Whether it speculates."""
        return self.method != "none"


def used(serve: Serve, context_tokens: float, batch: float) -> Used:
    """Returns what a point's `serve` block uses under its load.

    Args:
        serve: with every default filled in.
        context_tokens: mean prompt and output of a request together.
        batch: sequences at once.
    """
    speculative, place = serve.speculative_config, placement(serve)
    return used_by(
        place,
        method=str(speculative.method) if speculative is not None else "none",
        tree=serve.draft_tree is not None,
        context_tokens=context_tokens,
        batch=batch,
    )


def used_by(place: Placement, method: str, tree: bool, context_tokens: float, batch: float) -> Used:
    """Returns what a placement uses; arguments as of `used`."""
    gpus, gpu = place.tensor_parallel_size, place.accelerator
    own = measured_file(gpu.constants)
    return Used(
        engine=_engine(place.profile),
        kernels=OWN if own else place.profile.kernels,
        gpu=_gpu(gpu),
        weights=_weights(place),
        kv=KV_TYPES[place.kv_element_bytes],
        attention=_attention(place.model),
        experts=bool(place.model.num_experts),
        parameters=float(place.model.parameters),
        link="one" if gpus == 1 else "peers" if gpu.linked(gpus) else "host",
        gpus=gpus,
        stages=place.pipeline_parallel_size,
        method=method,
        k=place.num_speculative_tokens,
        tree=tree,
        context_tokens=context_tokens,
        batch=batch,
        fitted="calibration" in place.profile.source,
        rules=place.profile.scheduler,
        h100=gpu.constants.startswith("h100"),
    )


def _engine(profile: EngineProfile) -> str:
    known = catalog.names("engines")
    if profile.name in known:
        return profile.name
    rules = ("kernels", "scheduler", "async_scheduling", "scheduler_reserve_full_isl", *SCHEDULER_RULES)
    for name in _TOLD_BY_RULES:
        recorded = catalog.engine_profile(name)
        if all(getattr(profile, rule) == getattr(recorded, rule) for rule in rules):
            return name
    return profile.name


def _gpu(gpu: Accelerator) -> str:
    if gpu.name in catalog.names("accelerators") and gpu == catalog.accelerator(gpu.name):
        return gpu.name
    return f"{gpu.name} (changed)"


def _weights(place: Placement) -> str:
    """The one type of the weights; of several one that was not measured, if there is such, then FP8."""
    kinds = [place.model.stored_as(place.quantization) or "bfloat16"]
    kinds += [kind for run in place.model.runs for _, kind in run.formats]
    unmeasured = [kind for kind in kinds if kind not in ("bfloat16", "fp8")]
    return next(iter(unmeasured), "fp8" if "fp8" in kinds else "bfloat16")


def _attention(model: ModelSpec) -> str:
    kinds = {_mixing(mixer) for mixer in model.mixers}
    return next((kind for kind in ("recurrent", "compressed", "latent", "windowed") if kind in kinds), "full")


def _mixing(mixer: Mixer) -> str:
    if isinstance(mixer, GroupedAttention):
        return "full" if mixer == mixer.unwindowed else "windowed"
    if isinstance(mixer, LatentAttention):
        return "latent"
    return "compressed" if isinstance(mixer, CompressedAttention) else "recurrent"


@dataclass(frozen=True)
class Evidence:
    """What was measured of one subject.

    Attributes:
        subject: one of `SUBJECTS`.
        says: what it backs, in words.
        ranges: field of `Used` -> where it was measured; a field that is not named does not matter.
    """

    subject: str
    says: str
    ranges: Mapping[str, Range]

    def outside(self, this: Used) -> tuple[str, ...]:
        """Returns the fields of a run that lie outside, in the order of `ranges`."""
        return tuple(name for name in self.ranges if not self.holds(name, getattr(this, name)))

    def holds(self, name: str, value: object) -> bool:
        """Whether a value of a field was measured."""
        measured = self.ranges.get(name)
        if measured is None:
            return True
        if isinstance(measured, frozenset):
            return value in measured
        assert isinstance(value, int | float)
        return measured[0] <= value <= measured[1]


def _of(*values: object) -> Range:
    return frozenset(values)


def _kernels(gpu: str, engine: str, version: str, eight_bit: bool = True) -> Evidence:
    types = _of("bfloat16", "fp8") if eight_bit else _of("bfloat16")
    ranges = {"gpu": _of(gpu), "kernels": _of(engine), "weights": types, "kv": types}
    dense: dict[str, Range] = {"attention": _of("full"), "experts": _of(False), "link": _of("one", "peers")}
    return Evidence(KERNELS, f"kernel times ({gpu} under {version})", {**ranges, **dense})


RECORDED = {
    "vllm-0.33": "recorded vLLM 0.33.0 steps",
    "vllm-2026-01": "recorded vLLM 0.15.0 steps",
    "vllm-0.15": "recorded vLLM 0.15.0 steps",
    "sglang": "recorded SGLang 0.5.23 steps",
}
"""Engines whose scheduler was replayed step by step against recorded decisions (`tests/conformance`), and
what was recorded. An engine's scheduler is backed by its line here."""

_TOLD_BY_RULES = ("vllm-0.33", "sglang")
"""Those that a profile of one's own is told to be by its rules: 0.15 shares its rules with later ones."""

_RECORDED_METHODS = _of("none", "ngram", "eagle", "eagle3", "mtp", "draft_model")
"""Chains of drafts: n-gram, EAGLE (vLLM schedules EAGLE-3 and MTP as EAGLE) and draft models."""

_RECORDED_TREES: dict[str, Range] = {
    what: _of(False, True) if "SGLang" in what else _of(False) for what in RECORDED.values()
}
"""Whether drafts that are a tree were recorded too: SGLang's of 5 steps, 4 wide, with 8 drafts."""

_H100_RUNS: dict[str, Range] = {
    "engine": _of("vllm-2026-01", "vllm-0.33"),
    "h100": _of(True),
    "weights": _of("bfloat16"),
    "kv": _of("bfloat16"),
    "attention": _of("full"),
    "experts": _of(False),
    "parameters": (32e9, 71e9),
    "link": _of("one", "host"),
    "gpus": (1, 2),
    "stages": (1, 1),
    "method": _of("none", "eagle3", "draft_model"),
    "k": (0, 7),
    "tree": _of(False),
    "context_tokens": (0.0, 600.0),
    "batch": (0.0, 256.0),
}
"""`validate` on the 218 served runs of Qwen3-32B on an H100 of 94 GB and Llama-3.3-70B on two without
peer-to-peer: docs/trust.md has the errors. vLLM 0.33 is priced alike; where it may differ `HOST` says so."""


def _plain(
    says: str, engines: Range, gpus: Range, weights: str, parameters: tuple[float, float],
    gpu_counts: tuple[int, int], batch: int, context: tuple[float, float],
) -> Evidence:  # fmt: skip
    return Evidence(
        SERVED,
        says,
        {
            "engine": engines,
            "gpu": gpus,
            "weights": _of(weights),
            "kv": _of("bfloat16", "fp8"),
            "attention": _of("full"),
            "experts": _of(False),
            "parameters": parameters,
            "link": _of("one", "peers"),
            "gpus": gpu_counts,
            "stages": (1, 1),
            "method": _of("none"),
            "context_tokens": context,
            "batch": (1, batch),
        },
    )


_VLLM = _of("vllm-0.11", "vllm-0.15", "vllm-0.17", "vllm-0.19", "vllm-2026-01", "vllm-0.33")
_8B, _70B = (7e9, 9e9), (69e9, 72e9)

TABLE: tuple[Evidence, ...] = (
    _kernels("h100-sxm", "vllm", "vLLM 0.24"),
    _kernels("h200", "vllm", "vLLM 0.24"),
    _kernels("b200", "vllm", "vLLM 0.24"),
    _kernels("l40s", "vllm", "vLLM 0.24"),
    _kernels("a100-80gb", "vllm", "vLLM 0.14", eight_bit=False),
    _kernels("h100-sxm", "sglang", "SGLang 0.5.14"),
    _kernels("h100-sxm", "trtllm", "TensorRT-LLM 1.3"),
    Evidence(
        KERNELS,
        "kernel times (your own GPU's)",
        {"kernels": _of(OWN), "attention": _of("full"), "experts": _of(False), "link": _of("one", "peers")},
    ),
    *(
        Evidence(
            SCHEDULER,
            f"scheduler decisions ({what})",
            {
                "engine": _of(*(engine for engine, recorded in RECORDED.items() if recorded == what)),
                "method": _RECORDED_METHODS,
                "tree": trees,
                "stages": (1, 4) if what == RECORDED["vllm-0.33"] else (1, 1),
            },
        )
        for what, trees in _RECORDED_TREES.items()
    ),
    Evidence(HOST, "host time and memory (vLLM of January 2026)", {"engine": _of("vllm-2026-01")}),
    Evidence(HOST, "host time (fitted to your own results)", {"fitted": _of(True)}),
    Evidence(
        SERVED,
        "served step times (BF16 32B and 70B models on H100 under vLLM of January 2026, with EAGLE-3 and "
        "draft models, up to 600 tokens of context)",
        _H100_RUNS,
    ),
    _plain(
        "served step times (plain decoding of a 70B in FP8 on 2 to 8 H100 under vLLM: mean TPOT 4.5 % off, "
        "at worst 11 %)",
        _VLLM, _of("h100-sxm"), "fp8", _70B, (2, 8), 64, (2048.0, 16384.0),
    ),
    _plain(
        "served step times (plain decoding of a 70B in FP8 on B200 under vLLM: mean TPOT 6.9 % off, at worst "
        "23 %)",
        _VLLM, _of("b200"), "fp8", _70B, (1, 8), 64, (2048.0, 16384.0),
    ),
    _plain(
        "served step times (plain decoding of a 70B in FP8 on H200 under TensorRT-LLM: mean TPOT 4.2 % off, "
        "at worst 21 %)",
        _of("trtllm"), _of("h200"), "fp8", _70B, (1, 8), 128, (2048.0, 16384.0),
    ),
    _plain(
        "served step times (plain decoding of an 8B in BF16 on 1 to 4 H100 under TensorRT-LLM: mean TPOT "
        "5.9 % off, at worst 33 %)",
        _of("trtllm"), _of("h100-sxm"), "bfloat16", _8B, (1, 4), 128, (1152.0, 4608.0),
    ),
    _plain(
        "served step times (plain decoding of an 8B in BF16 on one H100 under vLLM 0.11: mean TPOT 3 % off, "
        "at worst 10 %)",
        _of("vllm-0.11"), _of("h100-sxm"), "bfloat16", _8B, (1, 1), 128, (0.0, 600.0),
    ),
)  # fmt: skip
"""Sources and errors: docs/trust.md, which prints them."""


def backing_of(this: Used, subject: str) -> list[Evidence]:
    """Returns the rows of a subject that hold for a run."""
    return [row for row in TABLE if row.subject == subject and not row.outside(this)]


def nearest(this: Used, subject: str) -> Evidence:
    """Returns the row of a subject with the fewest fields outside, of equal ones the first; for a run that
    speculates, among those that do. Served runs of another engine are near only where there are none of its
    own, and a user's own kernel times are near no other's."""
    rows = [row for row in TABLE if row.subject == subject]
    rows = [row for row in rows if this.kernels == OWN or row.ranges.get("kernels") != _of(OWN)]
    alike = [row for row in rows if this.drafts and row.ranges.get("method") != _of("none")] or rows
    return min(alike, key=lambda row: (_foreign(this, row), len(row.outside(this))))


def _foreign(this: Used, row: Evidence) -> bool:
    """Whether a row is of served runs, all by engines of other rules."""
    engines = row.ranges.get("engine")
    if row.subject != SERVED or not isinstance(engines, frozenset):
        return False
    return not any(str(engine).startswith(this.rules) for engine in engines)
