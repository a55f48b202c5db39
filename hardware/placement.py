"""One engine on its GPUs: everything that the price of a step and the size of the KV pool depend on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from hardware.accelerator import Accelerator
from hardware.constants import KernelConstants, kernel_constants
from hardware.cudagraph import capture_sizes
from hardware.engine_profile import EngineProfile
from hardware.interconnect import all_reduce_law
from hardware.model import KV_BYTES, WEIGHT_BYTES, DrafterSpec, ModelSpec

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A model, its drafter, and the GPUs and engine they run on; fields are named as in `vllm serve`.

    `draft_tensor_parallel_size` is 1 or the target's. `c_q` is what one more query token a sequence adds to
    decode attention, relative to its time (0.03: a kernel that reads KV once; 1: one that does not).
    `attention` picks constants fitted on all measured rows or on those with KV beyond the L2 ("cold").
    `Placement.of` fills the rest from the engine profile.
    """

    model: ModelSpec
    accelerator: Accelerator
    profile: EngineProfile
    tensor_parallel_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    async_scheduling: bool
    quantization: str | None = None
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    drafter: DrafterSpec | None = None
    num_speculative_tokens: int = 0
    draft_tensor_parallel_size: int = 1
    c_q: float = 0.03
    attention: str = "all"

    @classmethod
    def of(
        cls, model: ModelSpec, accelerator: Accelerator, profile: EngineProfile, *,
        tensor_parallel_size: int = 1,
        drafter: DrafterSpec | None = None,
        num_speculative_tokens: int = 0,
        draft_tensor_parallel_size: int | None = None,
        async_scheduling: bool | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        gpu_memory_utilization: float | None = None,
        quantization: str | None = None,
        dtype: str = "bfloat16",
        kv_cache_dtype: str = "auto",
        block_size: int = 16,
        c_q: float = 0.03,
        attention: str = "all",
    ) -> Placement:  # fmt: skip
        """A placement whose None fields take the profile's defaults, and the drafter the target's TP size."""
        method = drafter.method if drafter else None
        tp = tensor_parallel_size
        return cls(
            model=model,
            accelerator=accelerator,
            profile=profile,
            tensor_parallel_size=tp,
            max_num_seqs=_given(max_num_seqs, profile.max_num_seqs),
            max_num_batched_tokens=_given(max_num_batched_tokens, profile.max_num_batched_tokens),
            gpu_memory_utilization=_given(gpu_memory_utilization, profile.gpu_memory_utilization),
            async_scheduling=_given(async_scheduling, profile.schedules_async(method)),
            quantization=quantization,
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            block_size=block_size,
            drafter=drafter,
            num_speculative_tokens=num_speculative_tokens,
            draft_tensor_parallel_size=_given(draft_tensor_parallel_size, tp),
            c_q=c_q,
            attention=attention,
        )

    def __post_init__(self) -> None:
        """Raise ValueError, saying what to change, when the parts do not go together."""
        self._check_numbers()
        self._check_types()
        _check_sharding(self.model, self.tensor_parallel_size, "tensor_parallel_size")
        self._check_drafter()
        if self.tensor_parallel_size > 1:
            all_reduce_law(self.accelerator.constants, self.tensor_parallel_size, self.accelerator.p2p)

    def _check_numbers(self) -> None:
        for key in ("tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens", "block_size"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least 1")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ValueError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}; use a share in (0, 1]"
            )
        if self.c_q < 0.0:
            raise ValueError(f"c_q is {self.c_q}; it cannot be negative")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below "
                f"max_num_seqs {self.max_num_seqs}; every sequence needs one token a step, "
                "raise the one or lower the other"
            )

    def _check_types(self) -> None:
        _one_of("quantization", self.quantization, WEIGHT_BYTES)
        _one_of("dtype", self.dtype, ("bfloat16", "float16"))
        _one_of("kv_cache_dtype", self.kv_cache_dtype, KV_BYTES)
        _one_of("attention", self.attention, ("all", "cold"))
        if (
            self.weight_dtype not in self.constants.gemm
            or self.weight_dtype not in self.accelerator.flops_per_s
        ):
            raise ValueError(
                f"{self.accelerator.name} has no measured {self.weight_dtype} GEMM; "
                "choose another quantization"
            )

    def _check_drafter(self) -> None:
        drafter, count = self.drafter, self.num_speculative_tokens
        if (drafter is None) != (count == 0) or count < 0:
            raise ValueError(
                f"num_speculative_tokens is {count} with {'a' if drafter else 'no'} drafter; "
                "give both, or neither for plain decoding"
            )
        if drafter is None or drafter.model is None:
            return
        if self.draft_tensor_parallel_size not in (1, self.tensor_parallel_size):
            raise ValueError(
                f"draft_tensor_parallel_size is {self.draft_tensor_parallel_size}; "
                f"it must be 1 or the target's {self.tensor_parallel_size}"
            )
        _check_sharding(drafter.model, self.draft_tensor_parallel_size, "draft_tensor_parallel_size")
        if drafter.fc_input_multiple and drafter.target_hidden_size != self.model.hidden_size:
            raise ValueError(
                f"drafter {drafter.name} reads hidden states of width {drafter.target_hidden_size}, "
                f"{self.model.name} has {self.model.hidden_size}; choose the head trained for this model"
            )
        if drafter.method == "draft_model" and drafter.draft_vocab_size != self.model.vocab_size:
            raise ValueError(
                f"draft model {drafter.name} has a vocabulary of {drafter.draft_vocab_size}, "
                f"{self.model.name} of {self.model.vocab_size}; a draft model must share it"
            )

    @property
    def constants(self) -> KernelConstants:
        """Kernel constants of the GPU."""
        return kernel_constants(self.accelerator.constants)

    @property
    def weight_dtype(self) -> str:
        """Type the target's linear layers run in: "fp8" or "bfloat16" (float16 kernels are as fast)."""
        return "fp8" if self.quantization == "fp8" else "bfloat16"

    @property
    def kv_element_bytes(self) -> int:
        """Bytes of one cached key or value element."""
        return KV_BYTES[self.kv_cache_dtype]

    @property
    def query_len(self) -> int:
        """Tokens of a verifying sequence: 1 + num_speculative_tokens."""
        return 1 + self.num_speculative_tokens

    @property
    def capture_sizes(self) -> tuple[int, ...]:
        """Token counts with a CUDA graph."""
        most = self.profile.max_capture_tokens(self.max_num_seqs, self.max_num_batched_tokens, self.query_len)
        return capture_sizes(most, self.query_len)


def _given(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _one_of(key: str, value: str | None, allowed: Iterable[str | None]) -> None:
    names = tuple(allowed)
    if value not in names:
        raise ValueError(f"{key} is {value!r}; use one of {', '.join(map(str, names))}")


def _check_sharding(model: ModelSpec, tp: int, key: str) -> None:
    if tp < 1:
        raise ValueError(f"{key} is {tp}; it must be at least 1")
    for what in ("num_heads", "intermediate_size"):
        if getattr(model, what) % tp:
            raise ValueError(f"{key} {tp} does not divide {what} {getattr(model, what)} of {model.name}")
    heads = model.num_kv_heads
    if max(heads, tp) % min(heads, tp):
        raise ValueError(f"{key} {tp} and num_kv_heads {heads} of {model.name}: one must divide the other")
