"""One engine on its GPUs: everything that the price of a step and the size of the KV pool depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specfleet.hardware.accelerator import Accelerator
from specfleet.hardware.checks import check_measured, check_sharding, check_stages, given, one_of, span
from specfleet.hardware.constants import (
    AllReduceLaw,
    KernelConstants,
    LatentConstants,
    kernel_constants,
    latent_constants,
)
from specfleet.hardware.cudagraph import Tier
from specfleet.hardware.engine_profile import EngineProfile
from specfleet.hardware.interconnect import MOST_GPUS, all_reduce_law, check_collectives
from specfleet.hardware.layers.formats import SIXTEEN, weight_format
from specfleet.hardware.mixture.table import measured as measured_experts
from specfleet.hardware.mixture.table import mixture_of, stored_kind
from specfleet.hardware.model import KV_BYTES, WEIGHT_BYTES, DrafterSpec, ModelSpec
from specfleet.hardware.pipeline.stages import stage_model
from specfleet.hardware.sglang.defaults import SglangDefaults, max_running_requests_with_drafts

DEFAULT_C_Q = 0.03
C_Q_RANGE = (0.0, 0.15)
"""What one more query a sequence adds to decode attention, as a share: kernels that read KV once. Not
measured for q > 1 in any public table; 1 is a kernel that reads KV once a query."""

ROUTING_CORRELATION_RANGE = (0.2, 0.5)
"""How much of a draft's routing repeats its neighbours'; assumed, no public measurement."""

KV_TYPES = {1: "fp8", 2: "bfloat16"}
"""Name in the constants of a KV element of that many bytes."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A model, its drafter, and the GPUs and engine they run on; fields are named as in `vllm serve`.

    `draft_pass_tokens` are the tokens a sequence brings into each drafter pass, where it drafts a tree of
    `num_speculative_tokens` nodes; () is a chain. `draft_tiers`, where K changes while running, are
    each 1 + K with the most requests that run with it. `draft_tensor_parallel_size` is 1 or the target's.
    `data_parallel_size` ranks, each with `tensor_parallel_size` GPUs for its own requests, share the experts;
    `expert_parallel_size` groups of those GPUs hold different experts, and inside a group experts are cut.
    The layers are dealt out to `pipeline_parallel_size` stages of `tensor_parallel_size` GPUs; `at_stage` is
    the placement of one of them, whose number is `stage`: its layers alone, the drafter on the last.
    `c_q` is what one more query token a sequence adds to decode attention, relative to its time (0.03: a
    kernel that reads KV once; 1: one that does not).
    `routing_correlation` is the share of a draft token's experts that its sequence already uses: 1 + K tokens
    route like 1 + (1 - c) K (c_q: `C_Q_RANGE`, c: `ROUTING_CORRELATION_RANGE`).
    `attention` picks constants fitted on all measured rows or on those with KV beyond the L2 ("cold").
    `Placement.of` fills the rest from the engine profile and the accelerator.
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
    draft_pass_tokens: tuple[int, ...] = ()
    draft_tiers: tuple[Tier, ...] = ()
    draft_tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    stage: int | None = None
    c_q: float = DEFAULT_C_Q
    routing_correlation: float = 0.3
    attention: str = "all"

    @classmethod
    def of(
        cls, model: ModelSpec, accelerator: Accelerator, profile: EngineProfile, *,
        tensor_parallel_size: int = 1,
        drafter: DrafterSpec | None = None,
        num_speculative_tokens: int = 0,
        draft_pass_tokens: tuple[int, ...] = (),
        draft_tiers: tuple[Tier, ...] = (),
        draft_tensor_parallel_size: int | None = None,
        data_parallel_size: int = 1,
        expert_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        async_scheduling: bool | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        gpu_memory_utilization: float | None = None,
        quantization: str | None = None,
        dtype: str = "bfloat16",
        kv_cache_dtype: str = "auto",
        block_size: int = 16,
        c_q: float | None = None,
        routing_correlation: float = 0.3,
        attention: str | None = None,
    ) -> Placement:  # fmt: skip
        """A placement whose None fields take the defaults of profile or GPU, the drafter the target's TP."""
        tp, dp = tensor_parallel_size, data_parallel_size
        seqs, tokens = profile.limits(accelerator)
        utilization = profile.gpu_memory_utilization
        if profile.scheduler == "sglang":
            chunk = max_num_batched_tokens and max_num_batched_tokens * dp
            memory, graphs = accelerator.hbm_bytes, profile.decode_graphs
            defaults = SglangDefaults(memory, tp * dp, dp, chunk, latent=model.latent, graphs=graphs)
            tokens, utilization = defaults.chunked_prefill_size, defaults.mem_fraction_static
            seqs = max_running_requests_with_drafts(dp) if drafter else 4096
        kernels = kernel_constants(accelerator.constants, profile.kernels)
        ahead = profile.schedules_async(drafter.method if drafter else None)
        kv_cache_dtype = model.checkpoint_kv_cache_dtype if kv_cache_dtype == "auto" else kv_cache_dtype
        return cls(
            model=model,
            accelerator=accelerator,
            profile=profile,
            tensor_parallel_size=tp,
            max_num_seqs=given(max_num_seqs, seqs),
            max_num_batched_tokens=given(max_num_batched_tokens, tokens),
            gpu_memory_utilization=given(gpu_memory_utilization, utilization),
            async_scheduling=given(async_scheduling, ahead),
            quantization=quantization,
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            block_size=block_size,
            drafter=drafter,
            num_speculative_tokens=num_speculative_tokens,
            draft_pass_tokens=draft_pass_tokens,
            draft_tiers=draft_tiers,
            draft_tensor_parallel_size=given(draft_tensor_parallel_size, tp),
            data_parallel_size=dp,
            expert_parallel_size=expert_parallel_size,
            pipeline_parallel_size=pipeline_parallel_size,
            c_q=given(c_q, kernels.query_cost.get(KV_TYPES[KV_BYTES.get(kv_cache_dtype, 2)], DEFAULT_C_Q)),
            routing_correlation=routing_correlation,
            attention=given(attention, accelerator.attention),
        )

    def __post_init__(self) -> None:
        """Raise ValueError, saying what to change, when the parts do not go together."""
        self._check_numbers()
        self._check_types()
        self._check_ranks()
        if self.pipeline_parallel_size > 1 and self.stage is None:
            check_stages(self.model, self.pipeline_parallel_size, self.data_parallel_size)
        ways, _ = self.expert_split(self.tensor_parallel_size)
        check_sharding(self.model, self.tensor_parallel_size, "tensor_parallel_size", ways)
        self._check_drafter()
        self.all_reduce_law(self.tensor_parallel_size)

    def _check_ranks(self) -> None:
        dp, ep, experts = self.data_parallel_size, self.expert_parallel_size, self.model.num_experts
        if dp < 1 or ep < 1 or self.tensor_parallel_size < 1:
            return self._check_numbers()
        gpus = self.tensor_parallel_size * dp
        if (dp > 1 or ep > 1) and not experts:
            raise ValueError(
                f"{self.model.name} has no experts to share: data_parallel_size of a dense model is as many "
                "replicas, and expert_parallel_size does nothing"
            )
        if gpus % ep or experts % ep:
            raise ValueError(
                f"expert_parallel_size {ep} must divide the {gpus} GPUs and the {experts} experts of "
                f"{self.model.name}"
            )
        if dp > 1:
            if gpus > MOST_GPUS:
                raise ValueError(
                    f"{dp} data-parallel ranks of {self.tensor_parallel_size} GPUs are {gpus}; ranks that "
                    f"share experts are priced in one server of at most {MOST_GPUS}"
                )
            if not self.accelerator.linked(gpus):
                raise ValueError(
                    f"{gpus} GPUs {self.accelerator.name} do not reach each other; data-parallel ranks that "
                    "share experts are priced over NVLink"
                )
            check_collectives(self.accelerator.constants, dp)

    @property
    def stages(self) -> tuple[Placement, ...]:
        """The placement of each stage of a pipeline, in order."""
        return tuple(self.at_stage(stage) for stage in range(self.pipeline_parallel_size))

    def at_stage(self, stage: int) -> Placement:
        """What the GPUs of one stage hold and run; the drafter is on the last."""
        count = self.pipeline_parallel_size
        drafter = self.drafter if stage == count - 1 else None
        return replace(self, model=stage_model(self.model, count, stage), drafter=drafter, stage=stage)

    @property
    def begins(self) -> bool:
        """Whether the embedding is here."""
        return not self.stage

    @property
    def ends(self) -> bool:
        """Whether LM head, sampler and drafter are here."""
        return self.stage in (None, self.pipeline_parallel_size - 1)

    @property
    def vocabulary_matrices(self) -> int:
        """Vocabulary-by-hidden matrices held here; a tied one is both embedding and LM head."""
        if self.stage is None:
            return 1 if self.model.tie_word_embeddings else 2
        return self.begins + self.ends

    @property
    def gpus(self) -> int:
        """GPUs of an engine, its data-parallel ranks included."""
        return self.tensor_parallel_size * self.data_parallel_size * self.pipeline_parallel_size

    def _check_numbers(self) -> None:
        sizes = (
            "tensor_parallel_size",
            "data_parallel_size",
            "expert_parallel_size",
            "pipeline_parallel_size",
        )
        for key in (*sizes, "max_num_seqs", "max_num_batched_tokens", "block_size"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least 1")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ValueError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}; use a share in (0, 1]"
            )
        if self.c_q < 0.0:
            raise ValueError(f"c_q is {self.c_q}; it cannot be negative")
        if not 0.0 <= self.routing_correlation <= 1.0:
            raise ValueError(f"routing_correlation is {self.routing_correlation}; use a share from 0 to 1")
        if self.largest_step < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below "
                f"max_num_seqs {self.max_num_seqs}; every sequence needs one token a step, "
                "raise the one or lower the other"
            )

    def _check_types(self) -> None:
        one_of("quantization", self.quantization, WEIGHT_BYTES)
        one_of("dtype", self.dtype, ("bfloat16", "float16"))
        one_of("kv_cache_dtype", self.kv_cache_dtype, KV_BYTES)
        one_of("attention", self.attention, ("all", "cold"))
        self._check_kernels(self.model, self.weight_dtype)
        check_measured(self.accelerator, self.constants)
        kv_dtype = KV_TYPES[self.kv_element_bytes]
        if (kv_dtype, self.attention) not in self.constants.decode:
            raise ValueError(
                f"{self.accelerator.name} has no measured attention on {kv_dtype} KV; "
                "choose another kv_cache_dtype"
            )

    def _check_kernels(self, model: ModelSpec, dtype: str) -> None:
        if dtype not in self.constants.gemm or dtype not in self.accelerator.flops_per_s:
            why = "choose another quantization"
            if self.quantization is None or model is not self.model:
                why = f"{model.name} is published in it, choose another checkpoint"
            raise ValueError(f"{self.accelerator.name} has no measured {dtype} GEMM; {why}")

    def _check_drafter(self) -> None:
        drafter, count = self.drafter, self.num_speculative_tokens
        if ((drafter is None) != (count == 0) and self.ends) or count < 0:
            raise ValueError(
                f"num_speculative_tokens is {count} with {'a' if drafter else 'no'} drafter; "
                "give both, or neither for plain decoding"
            )
        if drafter is None or not drafter.on_gpu:
            return
        if drafter.target_hidden_size and drafter.target_hidden_size != self.model.hidden_size:
            raise ValueError(
                f"drafter {drafter.name} reads hidden states of width {drafter.target_hidden_size}, "
                f"{self.model.name} has {self.model.hidden_size}; choose the head trained for this model"
            )
        if self.draft_tensor_parallel_size not in (1, self.tensor_parallel_size):
            raise ValueError(
                f"draft_tensor_parallel_size is {self.draft_tensor_parallel_size}; "
                f"it must be 1 or the target's {self.tensor_parallel_size}"
            )
        deep = len(self.draft_pass_tokens) or count
        if drafter.medusa_heads and deep > drafter.medusa_heads:
            raise ValueError(
                f"num_speculative_tokens is {deep}, {drafter.name} has {drafter.medusa_heads} heads; "
                "ask for at most one draft a head"
            )
        if drafter.model is None:
            return
        check_sharding(drafter.model, self.draft_tensor_parallel_size, "draft_tensor_parallel_size")
        self._check_kernels(drafter.model, drafter.dtype)
        if drafter.method == "draft_model" and drafter.draft_vocab_size != self.model.vocab_size:
            raise ValueError(
                f"draft model {drafter.name} has a vocabulary of {drafter.draft_vocab_size}, "
                f"{self.model.name} of {self.model.vocab_size}; a draft model must share it"
            )

    @property
    def constants(self) -> KernelConstants:
        """Kernel constants of the GPU under the profile's engine."""
        constants = kernel_constants(self.accelerator.constants, self.profile.kernels)
        fuses = self.profile.fused_fp8_quantisation and "fp8" in constants.gemm
        return constants.fused() if fuses else constants

    @property
    def notes(self) -> tuple[str, ...]:
        """What is carried over from other hardware or assumed, a sentence each, for the reader."""
        said = list(self.constants.notes)
        if self.profile.fused_fp8_quantisation and self.weight_dtype == "fp8":
            said.append("FP8 scales are static: no kernel quantises activations")
        if self.tensor_parallel_size > 1 and not self.accelerator.linked(self.tensor_parallel_size):
            said.append("GPUs do not reach each other: all-reduce through the host, fitted on one server")
        if self.pipeline_parallel_size > 1:
            said.append(
                "sends between stages by the law of gathers; host time once a step, on the first stage"
            )
        if unmeasured := self.unmeasured:
            said.append(f"no measured table, priced by the nearest law: {', '.join(unmeasured)}")
        if self.model.kv_lora_rank and self.latent_constants(False) is None:
            said.append("latent attention with the constants of grouped-query attention: not measured")
        if self.model.num_experts:
            said.append(
                "experts: distinct ones by uniform routing, "
                f"correlation {self.routing_correlation:g} (assumed, {span(ROUTING_CORRELATION_RANGE)})"
            )
            said.append(self.expert_kernels)
        if self.num_speculative_tokens:
            said.append(f"one more query a sequence: c_q {self.c_q:g} of attention ({span(C_Q_RANGE)})")
        return tuple(said)

    def latent_constants(self, sparse: bool) -> LatentConstants | None:
        """Measured constants of latent attention here, None where none were; `sparse`: with an indexer."""
        kv = KV_TYPES[self.kv_element_bytes]
        return latent_constants(self.accelerator.constants, self.profile.kernels, kv, sparse)

    @property
    def expert_kernels(self) -> str:
        """Whose times price the experts, in words for the reader."""
        model, profile = self.model, self.profile
        run = next(run for run in model.runs if run.experts)
        assert run.experts is not None
        split = self.expert_split(self.tensor_parallel_size)
        mixture = mixture_of(run.experts, model.hidden_size, *split)
        stored = stored_kind(model, model.format_of(run, "experts", self.quantization))
        found = measured_experts(
            self.accelerator.constants, profile.kernels, profile.kernel_version, stored, mixture
        )
        if found is None:
            return "grouped GEMMs of the experts by a formula: no measured table"
        like, near = "", found.mixture
        if near != mixture:
            like = f" for {near.experts} experts of {near.hidden} x {near.width}, the nearest that was"
        chosen = ", choosing them besides by a law" if found.line.chosen else ""
        whose = f"{found.engine} {found.line.version} on {found.constants}"
        return f"experts as measured in {whose}{like}{chosen}"

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Kinds of layers and formats of weights that no measured table backs, in words for the reader."""
        model = self.model
        kinds = [mixer.unmeasured for mixer in model.mixers if mixer.unmeasured]
        kinds += ["sparse attention"] if any(m.reach and not m.cache(1).window for m in model.mixers) else []
        parts = [(run, part.role) for run in model.runs for part in run.parts(model.hidden_size, 1)]
        parts += [(run, "experts") for run in model.runs if run.experts]
        stored = {model.format_of(run, role, self.quantization) for run, role in parts}
        weights = [f"{name} weights" for name in sorted(stored) if not weight_format(name).measured]
        return tuple(dict.fromkeys((*kinds, *(name for name in weights if name != "mxfp4 weights"))))

    def expert_split(self, tp: int) -> tuple[int, int]:
        """Ways in which an expert is cut, and groups that hold different experts; `tp` is a drafter's."""
        if tp != self.tensor_parallel_size:
            return tp, 1
        gpus = tp * self.data_parallel_size
        return gpus // self.expert_parallel_size, self.expert_parallel_size

    def all_reduce_law(self, gpus: int) -> AllReduceLaw | None:
        """The law of an all-reduce among `gpus` of these GPUs, None for one. ValueError if not measured."""
        if gpus == 1:
            return None
        return all_reduce_law(
            self.accelerator.constants, gpus, self.accelerator.linked(gpus), self.profile.kernels
        )

    def kernel_law(self, stored: str) -> tuple[str, str]:
        """(GEMM law, name of the peak) for weights stored so on this GPU: the nearest that is measured.

        4-bit floats run at their own peak where the GPU has one, otherwise they are unpacked to 16 bits;
        8-bit integers have the law of FP8 where that is measured.
        """
        law, peaks = weight_format(stored).law, self.accelerator.flops_per_s
        if stored != SIXTEEN and stored in peaks and "fp8" in self.constants.gemm:
            return "fp8", stored
        return (law, law) if law in self.constants.gemm and law in peaks else (SIXTEEN, SIXTEEN)

    @property
    def weight_dtype(self) -> str:
        """Type the target's linear layers run in: "fp8" or "bfloat16" (float16 kernels are as fast)."""
        return "fp8" if self.model.stored_as(self.quantization) == "fp8" else "bfloat16"

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
        if self.profile.scheduler == "sglang":
            dp, memory = self.data_parallel_size, self.accelerator.hbm_bytes
            gpus, graphs = self.tensor_parallel_size * dp, self.profile.decode_graphs
            server = SglangDefaults(memory, gpus, dp, graphs=graphs)
            return tuple(
                n * self.query_len for n in server.capture_batches(self.max_num_seqs, self.query_len)
            )
        return self.profile.capture_sizes(
            self.max_num_seqs,
            self.max_num_batched_tokens,
            self.query_len,
            tiers=self.draft_tiers,
            ceiling=self.profile.graph_ceiling(self.accelerator),
            own=0 if self.profile.cudagraph_counts_sequences else self.model.cudagraph_max_tokens,
        )

    @property
    def uniform_capture_sizes(self) -> dict[int, tuple[int, ...]]:
        """By 1 + K: on what batches are padded in which every sequence has so many tokens.

        Empty in builds that pad all batches alike. Batches of other kinds are padded on `capture_sizes`.
        """
        profile, sizes = self.profile, self.capture_sizes
        if not profile.cudagraph_uniform_apart:
            return {}
        lengths = {query_len for query_len, _ in self.draft_tiers} or {self.query_len}
        return {query: profile.uniform_sizes(sizes, query, self.max_num_seqs) for query in sorted(lengths)}

    @property
    def largest_step(self) -> int:
        """Most tokens that a step computes. With SGLang verifications have no budget."""
        if self.profile.scheduler == "sglang":
            return max(self.max_num_batched_tokens, self.max_num_seqs * self.query_len)
        return self.max_num_batched_tokens
