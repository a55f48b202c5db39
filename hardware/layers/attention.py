"""Kinds of attention: grouped heads, latent (MLA), compressed (DeepSeek-V4)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specfleet.hardware.layers.parts import Cache, Part

INDEX_BLOCK = 128
"""vLLM stores an indexer's key in FP8 with one 4-byte scale a 128 values: 132 bytes for 128."""


@dataclass(frozen=True)
class Indexer:
    """Chooses what a sparse layer reads: `heads` queries against one key of `head_dim` a token, `topk` kept.

    `query_rank` is the width that its queries come from (0: the hidden state). A layer that shares the choice
    of another has none of its own.
    """

    heads: int
    head_dim: int
    topk: int
    query_rank: int = 0

    def parts(self, hidden: int) -> tuple[Part, ...]:
        """Projections, whole on every GPU."""
        root = "self_attn.indexer"
        return (
            Part("index_q", self.heads * self.head_dim, self.query_rank or hidden, (f"{root}.wq_b",)),
            Part("index_k", self.head_dim, hidden, (f"{root}.wk",)),
            Part("index_w", self.heads, hidden, (f"{root}.weights_proj",)),
        )

    @property
    def key_bytes(self) -> int:
        """Stored bytes of a token's key."""
        return self.head_dim + 4 * -(-self.head_dim // INDEX_BLOCK)


@dataclass(frozen=True)
class GroupedAttention:
    """Multi-head attention with grouped (or single, or as many) KV heads.

    `v_head_dim` 0 is `head_dim`. `window` above 0 is a sliding window in tokens, or with `chunked` a chunk
    that is never left. `gate` multiplies the output: "full" doubles the query projection (Qwen3-Next), "head"
    adds a value a head (Step). `one_projection` makes values of the key projection (Gemma 4: both cached);
    `shares_cache` layers have neither K nor V of their own (Gemma 3n). `input_multiple` is 2 in an EAGLE-3
    head. `index` makes it sparse: a query reads `sparse` tokens, and all are stored. `norm_over_heads`: the
    norm of queries and keys is over all heads together, for which GPUs have to add up (MiniMax-M2).
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int = 0
    window: int = 0
    chunked: bool = False
    gate: str = ""
    one_projection: bool = False
    shares_cache: bool = False
    input_multiple: int = 1
    index: Indexer | None = None
    sparse: int = 0
    norm_over_heads: bool = False

    unmeasured = ""

    @property
    def value_dim(self) -> int:
        """Width of a value head."""
        return self.v_head_dim or self.head_dim

    @property
    def reach(self) -> int:
        """Tokens that a query reads at most; 0: all."""
        return self.window or self.sparse

    @property
    def unwindowed(self) -> GroupedAttention:
        """The same projections without a window."""
        return replace(self, window=0, chunked=False)

    def kv_heads_on(self, tp: int) -> int:
        """KV heads on one GPU: at least one, replicated when there are more GPUs than heads."""
        return max(1, self.kv_heads // tp)

    def parts(self, hidden: int, tp: int) -> tuple[Part, ...]:
        """QKV and output projection, and an indexer's."""
        heads, kv = self.heads // tp, self.kv_heads_on(tp)
        keys = 0 if self.shares_cache else kv * self.head_dim
        values = 0 if self.shares_cache or self.one_projection else kv * self.value_dim
        queries = heads * self.head_dim * (2 if self.gate == "full" else 1)
        gate = heads if self.gate == "head" else 0
        names = ("self_attn.q_proj", "self_attn.qkv_proj")
        return (
            Part("qkv", queries + keys + values + gate, self.input_multiple * hidden, names),
            Part("o", hidden, heads * self.value_dim, ("self_attn.o_proj",)),
            *(self.index.parts(hidden) if self.index else ()),
        )

    def cache(self, tp: int, element_bytes: int = 2) -> Cache:
        """Keys and values, and the indexer's keys (one head, on every GPU)."""
        if self.shares_cache:
            return Cache("full")
        kind = "full" if not self.window else "chunked" if self.chunked else "sliding"
        elements = self.kv_heads_on(tp) * (self.head_dim + self.value_dim)
        index = self.index
        return Cache(
            kind,
            elements,
            self.window,
            index_elements=index.head_dim if index else 0,
            index_bytes=index.key_bytes if index else 0,
        )

    def pair_flops(self, tp: int) -> float:
        """FLOP of one (query, key) pair on one GPU."""
        return 2.0 * (self.heads // tp) * (self.head_dim + self.value_dim)

    @property
    def small_parameters(self) -> int:
        """Weights outside projections: none that count."""
        return 0


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one latent and one rotary key a token, on every GPU.

    `q_rank` 0 projects queries straight from the hidden state. `sparse` is how many tokens a query reads
    (DeepSeek sparse attention), chosen by `index` here or in an earlier layer. `gated`: the output passes a
    gate as wide as it is, made from the hidden state (Kimi K3).
    """

    heads: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_head_dim: int
    q_rank: int = 0
    index: Indexer | None = None
    sparse: int = 0
    gated: bool = False

    unmeasured = ""

    @property
    def reach(self) -> int:
        """Tokens that a query reads at most; 0: all."""
        return self.sparse

    @property
    def head_dim(self) -> int:
        """Width of a query head."""
        return self.nope_dim + self.rope_dim

    @property
    def unwindowed(self) -> LatentAttention:
        """The same: it has no window."""
        return self

    def parts(self, hidden: int, tp: int) -> tuple[Part, ...]:
        """Down-projections (replicated), up-projections (sharded by head), output, and an indexer's."""
        heads, latent = self.heads // tp, self.kv_rank + self.rope_dim
        query, root = heads * self.head_dim, "self_attn"
        if self.q_rank:
            down = Part("a", self.q_rank + latent, hidden, (f"{root}.q_a_proj", f"{root}.kv_a_proj_with_mqa"))
            up = Part("q_b", query, self.q_rank, (f"{root}.q_b_proj",))
        else:
            down = Part("a", latent, hidden, (f"{root}.kv_a_proj_with_mqa",))
            up = Part("q_b", query, hidden, (f"{root}.q_proj",))
        return (
            down,
            up,
            Part("kv_b", heads * (self.nope_dim + self.v_head_dim), self.kv_rank, (f"{root}.kv_b_proj",)),
            *((Part("gate", heads * self.v_head_dim, hidden, (f"{root}.g_proj",)),) if self.gated else ()),
            Part("o", hidden, heads * self.v_head_dim, (f"{root}.o_proj",)),
            *(self.index.parts(hidden) if self.index else ()),
        )

    def cache(self, tp: int, element_bytes: int = 2) -> Cache:
        """One latent a token, whatever the GPUs, and the indexer's key."""
        index = self.index
        return Cache(
            "latent",
            self.kv_rank + self.rope_dim,
            index_elements=index.head_dim if index else 0,
            index_bytes=index.key_bytes if index else 0,
        )

    def pair_flops(self, tp: int) -> float:
        """FLOP of one (query, key) pair on one GPU, keys and values unfolded (prefill)."""
        return 2.0 * (self.heads // tp) * (self.head_dim + self.v_head_dim)

    @property
    def small_parameters(self) -> int:
        """Weights outside projections: none that count."""
        return 0


@dataclass(frozen=True)
class CompressedAttention:
    """DeepSeek-V4: one head of keys that are values too, `ratio` tokens compressed into one entry.

    Every layer reads a window of `window` tokens; `ratio` 0 is that alone. With an indexer (ratio 4) `topk`
    entries are read, otherwise (128) all. Queries through a rank, outputs through `groups` low-rank blocks.
    """

    heads: int
    head_dim: int
    q_rank: int
    o_groups: int
    o_rank: int
    window: int
    ratio: int = 0
    index: Indexer | None = None

    reach = 0
    unmeasured = "compressed attention"

    @property
    def unwindowed(self) -> CompressedAttention:
        """The same: its window belongs to it."""
        return self

    def parts(self, hidden: int, tp: int) -> tuple[Part, ...]:
        """Query and KV down, query up, grouped output, compressor, indexer."""
        heads, root = self.heads // tp, "self_attn"
        wide = 2 if self.index else 1
        compressor = (
            (Part("compress", 2 * wide * self.head_dim, hidden, (f"{root}.compressor.kv_proj",)),)
            if self.ratio
            else ()
        )
        index = self.index
        chooser = (
            (
                Part("index_k", 4 * index.head_dim, hidden, (f"{root}.compressor.indexer.kv_proj",)),
                Part(
                    "index_q",
                    index.heads * index.head_dim,
                    self.q_rank,
                    (f"{root}.compressor.indexer.q_b_proj",),
                ),
                Part("index_w", index.heads, hidden, (f"{root}.compressor.indexer.weights_proj",)),
            )
            if index
            else ()
        )
        return (
            Part("a", self.q_rank + self.head_dim, hidden, (f"{root}.q_a_proj",)),
            Part("q_b", heads * self.head_dim, self.q_rank, (f"{root}.q_b_proj",)),
            Part(
                "o_a",
                max(1, self.o_groups // tp) * self.o_rank,
                self.heads * self.head_dim // self.o_groups,
                (f"{root}.o_a_proj",),
            ),
            Part("o_b", hidden, max(1, self.o_groups // tp) * self.o_rank, (f"{root}.o_b_proj",)),
            *compressor,
            *chooser,
        )

    def cache(self, tp: int, element_bytes: int = 2) -> Cache:
        """A window of entries a sequence; behind it one entry (and the indexer's key) a `ratio` tokens."""
        held = self.window * self.head_dim * element_bytes
        if not self.ratio:
            return Cache("state", state_bytes=held)
        index = self.index
        return Cache(
            "latent",
            self.head_dim // self.ratio,
            index_elements=index.head_dim // self.ratio if index else 0,
            index_bytes=index.key_bytes // self.ratio if index else 0,
            state_bytes=held,
        )

    def pair_flops(self, tp: int) -> float:
        """FLOP of one (query, entry) pair on one GPU."""
        return 4.0 * (self.heads // tp) * self.head_dim

    @property
    def small_parameters(self) -> int:
        """Position biases of the compressor."""
        return self.ratio * 2 * self.head_dim
