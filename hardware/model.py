"""Decoder-only models: shapes, weight bytes, KV bytes. Dense or mixture of experts, GQA or MLA.

Weight bytes follow how vLLM shards: QKV and gate/up by columns, output and down by rows, embedding and
LM head by vocabulary (padded to 64), KV heads replicated once there are fewer of them than GPUs. Routed
experts are sharded evenly, whether by width (tensor parallel) or by expert (expert parallel).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from specfleet.hardware.layers.attention import LatentAttention
from specfleet.hardware.layers.formats import default_format, weight_format
from specfleet.hardware.layers.parts import Gemm
from specfleet.hardware.layers.plain import LayerGroup, group_of, plain_runs
from specfleet.hardware.layers.positions import PLAIN_ROPE, Rope
from specfleet.hardware.layers.stack import LayerRun, Mixer, as_projected, mixers

KV_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Bytes of one KV element by vLLM's `kv_cache_dtype`."""

WEIGHT_BYTES: dict[str | None, int] = {None: 2, "fp8": 1}
"""Bytes of one linear weight by vLLM's `quantization`; embeddings, LM head, router and norms stay at 2."""

VOCABULARY_PADDING = 64

MOST = 1_000_000_000
"""Of any size of a model; vision weights may be a thousand times as many."""

MOST_LAYERS = 10_000


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a transformer, in the names of its Hugging Face `config.json`.

    `num_experts` 0 is a dense model. A mixture of experts has `num_dense_layers` layers with a dense MLP of
    `intermediate_size`; the others route a token to `num_experts_per_tok` experts of `moe_intermediate_size`
    beside shared ones of `shared_expert_intermediate_size` together, by scores with a correction added where
    there is a `router_bias`. `kv_lora_rank` above 0 is multi-head latent attention (MLA): `head_dim` is then
    unused by the cache. `num_windowed_layers` layers attend to the last `sliding_window` tokens only.
    `checkpoint_quantization` is how the published weights are stored ("fp8", "mxfp4" for routed experts, any
    name of `layers.formats`), `fp8_scales_by_block` whether its FP8 has a scale a block or one a channel or
    tensor. `vision_parameters` are the weights of an image tower (or of sound), in two bytes.
    `qkv_input_multiple` is 2 for the layer of an EAGLE-3 head, which reads the embedding, too. `mtp_layers`
    are layers for multi-token prediction, `checkpoint_kv_cache_dtype` the KV type that a checkpoint asks for.

    `stack` are the layers one kind after another, where the fields above cannot say it (they then sum it up).
    `extra_parameters` are weights beside layers, embedding and head. `cudagraph_max_tokens` is vLLM's largest
    CUDA graph for the model (gpt-oss: 1,024), 0 for the usual. `source` says where the shape comes from.
    """

    name: str
    hf_id: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    max_position_embeddings: int
    source: str
    aliases: tuple[str, ...] = ()
    qkv_input_multiple: int = 1
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    num_dense_layers: int = 0
    router_bias: bool = False
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    sliding_window: int = 0
    num_windowed_layers: int = 0
    checkpoint_quantization: str | None = None
    fp8_scales_by_block: bool = True
    vision_parameters: int = 0
    mtp_layers: int = 0
    checkpoint_kv_cache_dtype: str = "auto"
    extra_parameters: int = 0
    cudagraph_max_tokens: int = 0
    rope: Rope = PLAIN_ROPE
    stack: tuple[LayerRun, ...] = ()

    def __post_init__(self) -> None:
        """Reject shapes that no such model can have."""
        for key in (
            *("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size"),
            *("vocab_size", "max_position_embeddings", "qkv_input_multiple"),
            *(("num_experts_per_tok", "moe_intermediate_size") if self.num_experts else ()),
            *(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim") if self.kv_lora_rank else ()),
            *(("sliding_window",) if self.num_windowed_layers else ()),
        ):
            if getattr(self, key) <= 0:
                raise ValueError(f"model {self.name}: {key} is {getattr(self, key)}; it must be positive")
        for key, size in vars(self).items():
            wide = ("vision_parameters", "extra_parameters")
            most = MOST_LAYERS if key == "num_layers" else 1000 * MOST if key in wide else MOST
            if isinstance(size, int) and not 0 <= size <= most:
                raise ValueError(f"model {self.name}: {key} is {size}; use 0 to {most}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"model {self.name}: num_heads {self.num_heads} is no multiple of "
                f"num_kv_heads {self.num_kv_heads}"
            )
        for key, most in (
            ("num_experts_per_tok", self.num_experts),
            ("num_dense_layers", self.num_layers),
            ("num_windowed_layers", self.num_layers),
        ):
            if not 0 <= getattr(self, key) <= most:
                raise ValueError(
                    f"model {self.name}: {key} is {getattr(self, key)}; use 0 to {most} with this shape"
                )
        try:
            weight_format(self.checkpoint_quantization)
        except ValueError as error:
            raise ValueError(f"model {self.name}: checkpoint_quantization: {error}") from None
        if self.checkpoint_kv_cache_dtype not in KV_BYTES:
            raise ValueError(
                f"model {self.name}: checkpoint_kv_cache_dtype is {self.checkpoint_kv_cache_dtype!r}; "
                f"use one of {', '.join(KV_BYTES)}"
            )

    @cached_property
    def runs(self) -> tuple[LayerRun, ...]:
        """The layers by kind: as given, or as the plain fields say, those with a dense MLP first."""
        return self.stack or plain_runs(self)

    @cached_property
    def mixers(self) -> dict[Mixer, int]:
        """How many layers mix tokens in which way."""
        return mixers(self.runs)

    @cached_property
    def latent(self) -> bool:
        """Whether layers have latent attention (MLA)."""
        return any(isinstance(mixer, LatentAttention) for mixer in self.mixers)

    def kv_heads(self, tp: int) -> int:
        """KV heads on one GPU: at least one, replicated when there are more GPUs than heads."""
        return max(1, self.num_kv_heads // tp)

    def layer_groups(self, tp: int, quantization: str | None = None) -> tuple[LayerGroup, ...]:
        """The layers by kind as GEMMs see them. Router and routed experts are not among the GEMMs."""

        def stored(run: LayerRun, role: str) -> str:
            return self.format_of(run, role, quantization)

        return tuple(group_of(run, self.hidden_size, tp, stored) for run in as_projected(self.runs))

    @property
    def num_routed_layers(self) -> int:
        """Layers that route to experts."""
        return sum(run.layers for run in self.runs if run.experts)

    @cached_property
    def parameters(self) -> int:
        """All weights: image tower, layers, final norm, embedding, and the LM head unless it is tied."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        norms = self._norms + 1
        small = sum(layers * mixer.small_parameters for mixer, layers in self.mixers.items())
        rest = norms * self.hidden_size + embeddings + small + self.extra_parameters + self.vision_parameters
        return self.linear_parameters(1) + self._expert_parameters + rest

    @property
    def active_parameters(self) -> int:
        """Weights that one token passes through, embedding and LM head included, the image tower not."""
        idle = sum(
            run.layers
            * max(0, run.experts.experts - run.experts.per_token)
            * run.experts.expert_parameters(self.hidden_size)
            for run in self.runs
            if run.experts
        )
        return self.parameters - self.vision_parameters - idle

    @property
    def _expert_parameters(self) -> int:
        """Routers and routed experts."""
        hidden = self.hidden_size
        each = [(run.layers, run.experts) for run in self.runs if run.experts]
        return sum(count * kind.experts * (kind.expert_parameters(hidden) + hidden) for count, kind in each)

    @property
    def _norms(self) -> int:
        return sum(run.layers * run.norms for run in self.runs)

    def linear_parameters(self, tp: int) -> int:
        """Weights of all layers' GEMMs on one GPU, without routers and routed experts."""
        return sum(group.layers * sum(n * k for n, k in group.gemms) for group in self.layer_groups(tp))

    def routed_parameters(self, tp: int) -> float:
        """Weights of the routed experts that one token passes through, all layers of one GPU."""
        return sum(
            run.layers * run.experts.per_token * run.experts.expert_parameters(self.hidden_size) / tp
            for run in self.runs
            if run.experts
        )

    def stored_as(self, quantization: str | None) -> str | None:
        """How the weights lie in memory: as asked, else as published."""
        return quantization or self.checkpoint_quantization

    def format_of(self, run: LayerRun, role: str, quantization: str | None) -> str:
        """The format of one part of a layer: its own, or that of the checkpoint as a whole."""
        return dict(run.formats).get(role) or default_format(self.stored_as(quantization), role)

    def embedding_bytes(self, tp: int) -> int:
        """Bytes of one vocabulary-by-hidden matrix on one GPU, always 2 bytes a weight."""
        return 2 * padded_vocabulary(self.vocab_size) // tp * self.hidden_size

    def linear_bytes(self, quantization: str | None, tp: int) -> float:
        """Bytes of all layers' dense projections on one GPU."""
        return sum(
            run.layers
            * part.parameters
            * weight_format(self.format_of(run, part.role, quantization)).weight_bytes
            for run in self.runs
            for part in run.parts(self.hidden_size, tp)
        )

    def expert_bytes(self, run: LayerRun, quantization: str | None, tp: int) -> float:
        """Bytes of one routed expert of one layer on one GPU."""
        assert run.experts is not None
        stored = weight_format(self.format_of(run, "experts", quantization))
        return run.experts.expert_parameters(self.hidden_size) * stored.bits / (8 * tp)

    def _routed_bytes(self, quantization: str | None, tp: int) -> tuple[int, int]:
        """Bytes of all routers, and of all routed experts, on one GPU."""
        routers, experts = 0, 0.0
        for run in self.runs:
            if run.experts:
                routers += 2 * run.layers * run.experts.experts * self.hidden_size
                experts += run.layers * run.experts.experts * self.expert_bytes(run, quantization, tp)
        return routers, int(experts)

    def routed_bytes(self, quantization: str | None, tp: int) -> int:
        """Bytes of all routed experts on one GPU of `tp`."""
        return self._routed_bytes(quantization, tp)[1]

    def layers_bytes(self, quantization: str | None, tp: int) -> int:
        """Bytes of all layers on one GPU; norms and the rotary table are replicated, 2 bytes a value."""
        routers, experts = self._routed_bytes(quantization, tp)
        rotary_table = 2 * self.max_position_embeddings * (self.qk_rope_head_dim or self.head_dim)
        norms = (2 * self._norms + 2) * self.hidden_size
        small = 2 * sum(layers * mixer.small_parameters for mixer, layers in self.mixers.items()) // tp
        linear = int(self.linear_bytes(quantization, tp))
        return linear + routers + experts + norms + rotary_table + small

    def weight_bytes(self, quantization: str | None, tp: int) -> int:
        """Bytes of the loaded weights on one GPU (`quantization`: None, as published, or "fp8")."""
        matrices = 1 if self.tie_word_embeddings else 2
        beside = 2 * (self.vision_parameters + self.extra_parameters) // tp
        return self.layers_bytes(quantization, tp) + matrices * self.embedding_bytes(tp) + beside

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of the published weights, scales included: nothing padded, no table, MTP layers left out."""
        routers, experts = self._routed_bytes(None, 1)
        linear = int(self.linear_bytes(None, 1))
        counted = self.linear_parameters(1) + self._expert_parameters
        return linear + routers + experts + 2 * (self.parameters - counted)

    def kv_bytes_per_token(self, kv_cache_dtype: str, tp: int) -> int:
        """Bytes that one token holds on one GPU, over all layers, while it is in reach of each.

        MLA caches one latent and one rotary key a token on every GPU, an indexer its key; linear attention
        nothing. Windowed layers count in full: `hardware/hybrid.py` says what a long sequence holds.
        """
        element = KV_BYTES[kv_cache_dtype]
        return sum(
            layers * mixer.cache(tp, element).bytes_per_token(element)
            for mixer, layers in self.mixers.items()
        )

    def state_bytes(self, kv_cache_dtype: str, tp: int, drafts: int = 0) -> int:
        """Bytes that one sequence holds on one GPU whatever its length: states of linear attention, Mamba."""
        element = KV_BYTES[kv_cache_dtype]
        caches = [(mixer.cache(tp, element), layers) for mixer, layers in self.mixers.items()]
        return sum(
            layers * (cache.state_bytes + drafts * cache.draft_state_bytes) for cache, layers in caches
        )

    def share_in_reach(self, kv_cache_dtype: str, tp: int) -> float:
        """Of `kv_bytes_per_token`, what layers hold that read a window or a choice of tokens."""
        element = KV_BYTES[kv_cache_dtype]
        held = [
            (layers * mixer.cache(tp, element).bytes_per_token(element), mixer.reach)
            for mixer, layers in self.mixers.items()
        ]
        total = sum(size for size, _ in held)
        return sum(size for size, reach in held if reach) / total if total else 0.0

    def longest(self, yarn_lengthens: bool) -> int:
        """Tokens of the longest sequence that an engine takes by default."""
        return self.rope.longest(self.max_position_embeddings, yarn_lengthens)

    @property
    def reach(self) -> int:
        """Tokens that layers with a window, or sparse ones, read at most; 0: every layer reads all."""
        return max((mixer.reach for mixer in self.mixers), default=0)


def padded_vocabulary(vocab_size: int) -> int:
    """Rows of an embedding as vLLM allocates it: a multiple of 64."""
    return -(-vocab_size // VOCABULARY_PADDING) * VOCABULARY_PADDING


DRAFT_METHODS = ("eagle", "eagle3", "medusa", "mtp", "dflash", "dspark", "draft_model", "ngram", "suffix")
"""vLLM's names of what can propose drafts."""

HOST_METHODS = ("ngram", "suffix")
"""Methods that propose on the host: no weights, no KV, no pass."""


@dataclass(frozen=True)
class DrafterSpec:
    """What proposes drafts, under vLLM's `method`.

    eagle and mtp: one layer (`model`) behind an `fc` that fuses token embedding and hidden state in every
    pass, usually with the target's embedding and LM head (`own_embedding`, `own_lm_head` false). eagle3: the
    `fc` fuses `fc_input_multiple` hidden states of the target once a round; its LM head has
    `draft_vocab_size` tokens. medusa: `medusa_heads` heads of a square layer and an LM head on the target's
    last hidden state, no model. dflash and dspark: a few layers that fill a block of masked tokens in one
    pass, behind an `fc` over the target's states. draft_model: any model. ngram, suffix: found in the text.
    `target_hidden_size` is the width of what `fc` or the heads read, `fc_replicated` whether every GPU holds
    the whole `fc`. `parallel_drafting` proposes all tokens in one pass. `max_model_len` is the drafter's
    longest context in tokens (0: no limit of its own).
    """

    name: str
    hf_id: str
    method: str
    model: ModelSpec | None
    source: str
    aliases: tuple[str, ...] = ()
    fc_input_multiple: int = 0
    target_hidden_size: int = 0
    draft_vocab_size: int = 0
    own_embedding: bool = False
    own_lm_head: bool = True
    fc_replicated: bool = True
    max_model_len: int = 0
    parallel_drafting: bool = False
    medusa_heads: int = 0

    def __post_init__(self) -> None:
        """Reject a method without the shape that it needs."""
        if self.method not in DRAFT_METHODS:
            raise ValueError(
                f"drafter {self.name}: method {self.method!r} is unknown; "
                f"use one of {', '.join(DRAFT_METHODS)}"
            )
        modelless = (*HOST_METHODS, "medusa")
        if (self.model is None) != (self.method in modelless):
            needs = "has no model" if self.method in modelless else "needs a model"
            raise ValueError(f"drafter {self.name}: method {self.method} {needs}")
        if self.fuses and min(self.fc_input_multiple, self.target_hidden_size) < 1:
            usual = {"eagle3": 3, "dflash": 5, "dspark": 5}.get(self.method, 2)
            raise ValueError(
                f"drafter {self.name}: method {self.method} needs fc_input_multiple ({usual}) "
                "and target_hidden_size"
            )
        if self.method == "medusa" and min(self.medusa_heads, self.target_hidden_size) < 1:
            raise ValueError(f"drafter {self.name}: medusa needs medusa_heads and target_hidden_size")
        if self.method not in HOST_METHODS and self.draft_vocab_size < 1:
            raise ValueError(f"drafter {self.name}: draft_vocab_size must be positive")

    @property
    def fuses(self) -> bool:
        """Whether an `fc` layer joins what the target gives with what the layer reads."""
        return self.method in ("eagle", "eagle3", "mtp", "dflash", "dspark")

    @property
    def fuses_every_pass(self) -> bool:
        """Whether `fc` runs in every pass (eagle, mtp) or once a round, on the target's states (eagle3)."""
        return self.method in ("eagle", "mtp")

    @property
    def on_gpu(self) -> bool:
        """Whether drafting takes passes on the GPU."""
        return self.method not in HOST_METHODS

    @property
    def dtype(self) -> str:
        """Type of its linear layers: "fp8" or "bfloat16", as published."""
        stored = self.model.stored_as(None) if self.model else None
        return "fp8" if stored == "fp8" else "bfloat16"

    def fc_gemm(self, tp: int) -> Gemm | None:
        """(N, K) of the fusion layer on one GPU, or None."""
        if self.model is None or self.fc_input_multiple == 0:
            return None
        width = self.model.hidden_size
        return (
            width if self.fc_replicated else width // tp,
            self.fc_input_multiple * self.target_hidden_size,
        )

    def head_parameters(self, tp: int) -> int:
        """Weights of its LM head on one GPU: those read, its own or the target's; of one head for medusa."""
        width = self.model.hidden_size if self.model else self.target_hidden_size
        return padded_vocabulary(self.draft_vocab_size) // tp * width

    def weight_bytes(self, tp: int) -> int:
        """Bytes that it adds on one GPU: layers, `fc`, and an LM head and embedding of its own."""
        if self.method == "medusa":
            return 2 * self.medusa_heads * (self.target_hidden_size**2 + self.head_parameters(tp))
        if self.model is None:
            return 0
        if self.method == "draft_model":
            return self.model.weight_bytes(None, tp)
        fc = self.fc_gemm(tp)
        head = 2 * self.head_parameters(tp) if self.own_lm_head else 0
        embedding = self.model.embedding_bytes(tp) if self.own_embedding else 0
        return self.model.layers_bytes(None, tp) + (2 * fc[0] * fc[1] if fc else 0) + head + embedding

    def kv_bytes_per_token(self, kv_cache_dtype: str, tp: int) -> int:
        """Bytes that one token holds in the drafter's own layers on one GPU."""
        return 0 if self.model is None else self.model.kv_bytes_per_token(kv_cache_dtype, tp)

    @classmethod
    def from_model(cls, model: ModelSpec) -> DrafterSpec:
        """Any catalogue model as a `draft_model`: it keeps its own embedding, head and context length."""
        return cls(
            name=model.name,
            hf_id=model.hf_id,
            method="draft_model",
            model=model,
            source=model.source,
            aliases=model.aliases,
            draft_vocab_size=model.vocab_size,
            own_embedding=True,
            max_model_len=model.max_position_embeddings,
        )


_ON_HOST = "vLLM: look-up in the text, no weights and no KV"
NGRAM = DrafterSpec(name="ngram", hf_id="", method="ngram", model=None, source=_ON_HOST)
"""Prompt lookup: proposes on the host, adds nothing to the GPU."""

SUFFIX = DrafterSpec(name="suffix", hf_id="", method="suffix", model=None, source=_ON_HOST)
"""Suffix decoding: proposes from suffix trees on the host, adds nothing to the GPU."""
