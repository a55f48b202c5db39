"""Dense decoder-only models and drafters: shapes, weight bytes, KV bytes.

Weight bytes follow how vLLM shards: QKV and gate/up by columns, output and down by rows, embedding and
LM head by vocabulary (padded to 64), KV heads replicated once there are fewer of them than GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

KV_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Bytes of one KV element by vLLM's `kv_cache_dtype`."""

WEIGHT_BYTES = {None: 2, "fp8": 1}
"""Bytes of one linear weight by vLLM's `quantization`; embeddings, LM head and norms stay at 2."""

VOCABULARY_PADDING = 64


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a dense transformer, in the names of its Hugging Face `config.json`.

    `qkv_input_multiple` is 2 for the layer of an EAGLE-3 head, which reads the embedding beside the hidden
    state. `source` says where the shape comes from.
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

    def __post_init__(self) -> None:
        """Reject shapes that no such model can have."""
        for key in (
            *("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size"),
            *("vocab_size", "max_position_embeddings", "qkv_input_multiple"),
        ):
            if getattr(self, key) <= 0:
                raise ValueError(f"model {self.name}: {key} is {getattr(self, key)}; it must be positive")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"model {self.name}: num_heads {self.num_heads} is no multiple of "
                f"num_kv_heads {self.num_kv_heads}"
            )

    def kv_heads(self, tp: int) -> int:
        """KV heads on one GPU: at least one, replicated when there are more GPUs than heads."""
        return max(1, self.num_kv_heads // tp)

    def layer_gemms(self, tp: int) -> tuple[tuple[int, int], ...]:
        """(output width N, input width K) of the QKV, output, gate/up and down projection on one GPU."""
        attention = self.num_heads // tp * self.head_dim
        qkv = attention + 2 * self.kv_heads(tp) * self.head_dim
        hidden, mlp = self.hidden_size, self.intermediate_size // tp
        return (
            (qkv, self.qkv_input_multiple * hidden),
            (hidden, attention),
            (2 * mlp, hidden),
            (hidden, mlp),
        )

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer: four projections and two norms (biases and head norms are below 0.01 %)."""
        return sum(n * k for n, k in self.layer_gemms(1)) + 2 * self.hidden_size

    @property
    def parameters(self) -> int:
        """All weights: layers, final norm, embedding, and the LM head unless it is tied."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * self.layer_parameters + self.hidden_size + embeddings

    def embedding_bytes(self, tp: int) -> int:
        """Bytes of one vocabulary-by-hidden matrix on one GPU, always 2 bytes a weight."""
        return 2 * padded_vocabulary(self.vocab_size) // tp * self.hidden_size

    def layers_bytes(self, quantization: str | None, tp: int) -> int:
        """Bytes of all layers on one GPU; norms and the rotary table are replicated, 2 bytes a value."""
        linear = sum(n * k for n, k in self.layer_gemms(tp)) * WEIGHT_BYTES[quantization]
        rotary_table = 2 * self.max_position_embeddings * self.head_dim
        return self.num_layers * (linear + 4 * self.hidden_size) + 2 * self.hidden_size + rotary_table

    def weight_bytes(self, quantization: str | None, tp: int) -> int:
        """Bytes of the loaded weights on one GPU (`quantization`: None or "fp8")."""
        matrices = 1 if self.tie_word_embeddings else 2
        return self.layers_bytes(quantization, tp) + matrices * self.embedding_bytes(tp)

    def kv_bytes_per_token(self, kv_cache_dtype: str, tp: int) -> int:
        """Bytes of keys and values that one token holds on one GPU, over all layers."""
        return 2 * self.num_layers * self.kv_heads(tp) * self.head_dim * KV_BYTES[kv_cache_dtype]


@dataclass(frozen=True)
class DrafterSpec:
    """What proposes drafts: an EAGLE-3 head, a small model, or an n-gram lookup (no model at all).

    `fc_input_multiple` hidden states of the target, each `target_hidden_size` wide, are fused by the EAGLE-3
    `fc` layer (0: there is none). `own_embedding` says whether the head brings its embedding or shares the
    target's, `fc_replicated` whether every GPU holds the whole `fc`. `parallel_drafting` proposes all
    tokens in one pass. `max_model_len` is the drafter's longest context in tokens (0: no limit of its own).
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
    fc_replicated: bool = True
    max_model_len: int = 0
    parallel_drafting: bool = False

    def __post_init__(self) -> None:
        """Reject a method without the shape that it needs."""
        if self.method not in ("eagle3", "draft_model", "ngram"):
            raise ValueError(
                f"drafter {self.name}: method {self.method!r} is unknown; use eagle3, draft_model or ngram"
            )
        if (self.model is None) != (self.method == "ngram"):
            needs = "has no model" if self.method == "ngram" else "needs a model"
            raise ValueError(f"drafter {self.name}: method {self.method} {needs}")
        if self.method == "eagle3" and min(self.fc_input_multiple, self.target_hidden_size) < 1:
            raise ValueError(
                f"drafter {self.name}: an EAGLE-3 head needs fc_input_multiple (3) and target_hidden_size"
            )
        if self.method != "ngram" and self.draft_vocab_size < 1:
            raise ValueError(f"drafter {self.name}: draft_vocab_size must be positive")

    def fc_gemm(self, tp: int) -> tuple[int, int] | None:
        """(N, K) of the EAGLE-3 fusion layer on one GPU, or None."""
        if self.model is None or self.fc_input_multiple == 0:
            return None
        width = self.model.hidden_size
        return (
            width if self.fc_replicated else width // tp,
            self.fc_input_multiple * self.target_hidden_size,
        )

    def weight_bytes(self, tp: int) -> int:
        """Bytes that it adds on one GPU: layers, `fc`, LM head and, where it has one, its embedding."""
        if self.model is None:
            return 0
        if self.method == "draft_model":
            return self.model.weight_bytes(None, tp)
        fc = self.fc_gemm(tp)
        head = 2 * padded_vocabulary(self.draft_vocab_size) // tp * self.model.hidden_size
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


def padded_vocabulary(vocab_size: int) -> int:
    """Rows of an embedding as vLLM allocates it: a multiple of 64."""
    return -(-vocab_size // VOCABULARY_PADDING) * VOCABULARY_PADDING


NGRAM = DrafterSpec(
    name="ngram",
    hf_id="",
    method="ngram",
    model=None,
    source="vLLM: prompt lookup on the host, no weights and no KV",
)
"""Prompt lookup: proposes on the host, adds nothing to the GPU."""
