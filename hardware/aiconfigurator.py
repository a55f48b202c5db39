"""Optional backend `cost_model: aiconfigurator`: the target's kernels from aiconfigurator-core's own tables.

Operators without attention are looked up at the tokens of the step, decode attention at its number of
sequences and mean context, so that a verifying sequence reads its KV once (the package's own `nextn` would
charge it 1 + K times and is not used). Host time and drafter are those of `KernelCost`: the tables have no
host, and they know no served FLOP rate, so times are a little optimistic at many tokens.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specfleet.hardware.kernels import Array
from specfleet.hardware.model import ModelSpec
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import TERMS, KernelCost, StepShape

CONTEXT_STEP = 16
"""Mean contexts are looked up in steps of so many tokens."""

INSTALL = (
    "cost_model aiconfigurator needs the package aiconfigurator-core 0.12: "
    "pip install 'specfleet[measured]' (or 'aiconfigurator-core==0.12.*')"
)

Operators = Iterable[tuple[str, float, float, str]]
"""(name, milliseconds, energy, source) of each operator of a step."""


class CompiledEngine(Protocol):
    """What is used of `aiconfigurator_core.sdk.engine.EngineHandle`."""

    def decode_step_per_op(self, gen_tokens: int, isl: int, osl: int) -> Operators:
        """Operators of one decode step of `gen_tokens` sequences at context `isl + osl / 2`."""
        ...

    def run_static_per_op(
        self, *, batch_size: int, isl: int, osl: int, prefix: int, mode: str
    ) -> tuple[Operators, Operators]:
        """Operators of a prefill of `isl - prefix` new tokens a sequence, and of the decodes after it."""
        ...


class AiconfiguratorCost(KernelCost):
    """Prices the target pass by tables of measured kernels, host and drafter as `KernelCost` does."""

    def __init__(self, placement: Placement, engine: CompiledEngine | None = None) -> None:
        """Compile the placement (some seconds), or use a compiled `engine`.

        Raises ImportError with the line that installs the package, ValueError for a model or GPU that it or
        this backend has no tables for.
        """
        _check(placement.model)
        super().__init__(placement)
        self._engine = engine if engine is not None else _compile(placement)
        self._rows = lru_cache(maxsize=None)(self._look_up_rows)
        self._decode = lru_cache(maxsize=1 << 16)(self._look_up_decode)
        self._chunk = lru_cache(maxsize=1 << 16)(self._look_up_chunk)

    def seconds(self, shape: StepShape) -> float:
        """Seconds of one step."""
        total = 0.0
        for value in self._parts(shape):
            total = total + value
        return total

    def terms(self, columns: Mapping[str, NDArray[np.int64]]) -> dict[str, Array]:
        """Seconds by term, a row a step. Kernel floors are inside their operators: `launch` is zero."""
        steps = zip(*(columns[key].tolist() for key in StepShape._fields), strict=True)
        parts = np.array([self._parts(StepShape(*step)) for step in steps]).reshape(-1, len(TERMS))
        return {term: parts[:, place] for place, term in enumerate(TERMS)}

    def summary(self) -> str:
        """What `KernelCost` says, and where the target's times come from."""
        return super().summary().replace("kernels:", "aiconfigurator tables (host, drafter: kernels):", 1)

    def _parts(self, shape: StepShape) -> tuple[float, ...]:
        """Seconds in the order of `TERMS`."""
        gemms, elementwise, links, _ = self._rows(self.padded_tokens(shape))
        _, _, _, head = self._rows(shape.logit_rows)
        kv = 0.0
        if shape.decode_sequences:
            context = -(-shape.kv_tokens // (shape.decode_sequences * CONTEXT_STEP)) * CONTEXT_STEP
            queries = shape.draft_tokens / shape.decode_sequences
            kv = self._decode(shape.decode_sequences, max(CONTEXT_STEP, context))
            kv = kv * (1.0 + self._c_q * queries)
        prefill = 0.0
        if shape.prefill_sequences:
            chunk = (shape.tokens - shape.decode_sequences - shape.draft_tokens) // shape.prefill_sequences
            past = shape.prefill_pairs // (chunk * shape.prefill_sequences) - (chunk + 1) // 2
            past = max(0, round(past / CONTEXT_STEP)) * CONTEXT_STEP
            prefill = self._chunk(shape.prefill_sequences, chunk, past)
        host = self._host_s + self._host_request_s * (shape.decode_sequences + shape.prefill_sequences)
        return gemms + head, kv, elementwise + prefill, links, 0.0, host, self.drafter_s(shape)

    def _look_up_rows(self, rows: int) -> tuple[float, float, float, float]:
        """GEMMs, elementwise, all-reduces and LM head of a pass over `rows` tokens."""
        if not rows:
            return 0.0, 0.0, 0.0, 0.0
        found = _milliseconds(self._engine.decode_step_per_op(rows, 2 * CONTEXT_STEP, 2))
        head = _sum(found, lambda name: name.endswith("logits_gemm"))
        gemms = _sum(found, lambda name: name.endswith("gemm")) - head
        links = _sum(found, lambda name: "_ar" in name or name.endswith("p2p"))
        attention = _sum(found, lambda name: name.endswith("attention"))
        return gemms, _sum(found, bool) - gemms - head - links - attention, links, head

    def _look_up_decode(self, sequences: int, context: int) -> float:
        """Decode attention of all layers for `sequences` at a mean `context`."""
        found = _milliseconds(self._engine.decode_step_per_op(sequences, max(1, context - 1), 2))
        return _sum(found, lambda name: name.endswith("attention"))

    def _look_up_chunk(self, sequences: int, chunk: int, past: int) -> float:
        """Prefill attention of all layers for chunks of `chunk` tokens behind `past`."""
        found, _ = self._engine.run_static_per_op(
            batch_size=sequences, isl=chunk + past, osl=2, prefix=past, mode="static_ctx"
        )
        return _sum(_milliseconds(found), lambda name: name.endswith("attention"))


def _milliseconds(operators: Operators) -> dict[str, float]:
    return {name: milliseconds for name, milliseconds, *_ in operators}


def _sum(found: Mapping[str, float], wanted: Callable[[str], bool]) -> float:
    """Seconds of the operators whose names are wanted."""
    return 1e-3 * sum(milliseconds for name, milliseconds in found.items() if wanted(name))


def _check(model: ModelSpec) -> None:
    if model.num_experts or model.kv_lora_rank or model.num_windowed_layers or model.stack:
        raise ValueError(
            f"cost_model aiconfigurator prices dense models with full attention; {model.name} has experts, "
            "latent or windowed attention or other kinds of layers; use cost_model kernels"
        )


def _compile(placement: Placement) -> CompiledEngine:
    """The package's engine for this placement, from a `config.json` of our own: nothing is downloaded."""
    try:
        package = import_module("aiconfigurator_core.sdk.engine")
    except ImportError:
        raise ImportError(INSTALL) from None
    fused = placement.profile.fused_fp8_quantisation
    gemm = "bfloat16" if placement.weight_dtype != "fp8" else "fp8_static" if fused else "fp8"
    options: dict[str, Any] = {
        "tp_size": placement.tensor_parallel_size,
        "gemm_quant_mode": gemm,
        "kvcache_quant_mode": "fp8" if placement.kv_element_bytes == 1 else "bfloat16",
    }
    system, backend = placement.accelerator.constants, placement.profile.kernels
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(_config(placement.model)), encoding="utf-8")
        try:
            engine: CompiledEngine = package.EngineHandle.compile(folder, system, backend, **options)
        except (ValueError, KeyError, RuntimeError) as error:
            raise ValueError(
                f"aiconfigurator cannot price {placement.model.name} on {system} under {backend}: {error}"
            ) from None
    return engine


def _config(model: ModelSpec) -> dict[str, Any]:
    """A Hugging Face config of this shape; Qwen3 is the family with a head width of its own."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.intermediate_size,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_position_embeddings,
        "tie_word_embeddings": model.tie_word_embeddings,
        "torch_dtype": "bfloat16",
    }
