"""Layers whose memory of a sequence does not grow: gated delta rule, Mamba, lightning, short convolution."""

from __future__ import annotations

from dataclasses import dataclass, field

from specfleet.hardware.layers.parts import Cache, Part


@dataclass(frozen=True)
class GatedDelta:
    """Linear attention by the gated delta rule (Qwen3-Next, Qwen3.5, Kimi Linear).

    The state is one `key_dim` x `value_dim` matrix a value head, in `state_element_bytes`; a causal
    convolution of `kernel` taps runs over keys, queries and values before it, its state in 16 bits.
    `gates`: "scalar" has two values a head beside a full output gate; "low_rank" (Kimi) makes forget and
    output gates through a rank of `value_dim`; "output" (Kimi K3) the forget gate alone, the output gate is
    whole; "full" (Ling) has both whole.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    state_element_bytes: int = 2
    gates: str = "scalar"

    reach = 0
    unmeasured = "linear attention (gated delta rule)"

    @property
    def unwindowed(self) -> GatedDelta:
        """The same: it has no window."""
        return self

    def _conv_width(self, tp: int) -> int:
        return (2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim) // tp

    def parts(self, hidden: int, tp: int) -> tuple[Part, ...]:
        """QKV with the output gate, the small gates, output projection."""
        values, heads = self.value_heads * self.value_dim // tp, self.value_heads // tp
        root = "linear_attn"
        if self.gates != "scalar":
            root, rank, keys = "self_attn", self.value_dim, self.value_heads * self.key_dim // tp
            whole = {"low_rank": 0, "output": values, "full": keys + values}[self.gates]
            ranks = {"low_rank": 2, "output": 1, "full": 0}[self.gates]
            return (
                Part("in", self._conv_width(tp), hidden, (f"{root}.q_proj",)),
                Part("gates_a", whole + ranks * rank + heads, hidden, (f"{root}.f_a_proj",)),
                *((Part("gates_b", keys + values - whole, rank, (f"{root}.f_b_proj",)),) if ranks else ()),
                Part("o", hidden, values, (f"{root}.o_proj",)),
            )
        return (
            Part(
                "in",
                self._conv_width(tp) + values,
                hidden,
                (f"{root}.in_proj_qkv", f"{root}.in_proj_qkvz", f"{root}.in_proj_z"),
            ),
            Part(
                "gates", 2 * heads, hidden, (f"{root}.in_proj_ba", f"{root}.in_proj_b", f"{root}.in_proj_a")
            ),
            Part("o", hidden, values, (f"{root}.out_proj",)),
        )

    def cache(self, tp: int, element_bytes: int = 2) -> Cache:
        """Convolution columns and the recurrent matrix, once a sequence."""
        column = 2 * self._conv_width(tp)
        matrix = self.value_heads // tp * self.key_dim * self.value_dim * self.state_element_bytes
        held = (self.kernel - 1) * column + matrix
        return Cache("state", state_bytes=held, draft_state_bytes=column)

    def pair_flops(self, tp: int) -> float:
        """Nothing grows with the context."""
        return 0.0

    def token_flops(self, tp: int) -> float:
        """FLOP of one token beyond the projections: decay, delta, read of the matrix."""
        return 6.0 * (self.value_heads // tp) * self.key_dim * self.value_dim

    @property
    def small_parameters(self) -> int:
        """Convolution."""
        return self.kernel * self._conv_width(1)


@dataclass(frozen=True)
class Mamba:
    """Mamba-2 (SSD): `heads` of `head_dim` channels with a state of `state_dim` each, `groups` of B and C."""

    heads: int
    head_dim: int
    state_dim: int
    groups: int
    kernel: int
    state_element_bytes: int = 2
    root: str = field(default="mixer", compare=False)

    reach = 0
    unmeasured = "Mamba layers"

    @property
    def unwindowed(self) -> Mamba:
        """The same: it has no window."""
        return self

    def _conv_width(self, tp: int) -> int:
        return (self.heads * self.head_dim + 2 * self.groups * self.state_dim) // tp

    def parts(self, hidden: int, tp: int) -> tuple[Part, ...]:
        """Input projection (gate, x, B, C, dt) and output projection."""
        inner = self.heads * self.head_dim // tp
        return (
            Part("in", inner + self._conv_width(tp) + self.heads // tp, hidden, (f"{self.root}.in_proj",)),
            Part("o", hidden, inner, (f"{self.root}.out_proj",)),
        )

    def cache(self, tp: int, element_bytes: int = 2) -> Cache:
        """Convolution columns and the state, once a sequence."""
        column = 2 * self._conv_width(tp)
        state = self.heads // tp * self.head_dim * self.state_dim * self.state_element_bytes
        return Cache("state", state_bytes=(self.kernel - 1) * column + state, draft_state_bytes=column)

    def pair_flops(self, tp: int) -> float:
        """Nothing grows with the context."""
        return 0.0

    def token_flops(self, tp: int) -> float:
        """FLOP of one token beyond the projections."""
        return 6.0 * (self.heads // tp) * self.head_dim * self.state_dim

    @property
    def small_parameters(self) -> int:
        """Convolution with its bias, norm."""
        return (self.kernel + 1) * self._conv_width(1) + self.heads * self.head_dim


@dataclass(frozen=True)
class Lightning:
    """Lightning linear attention (MiniMax-Text-01): a FP32 `head_dim` x `head_dim` matrix a head, a gate."""

    heads: int
    head_dim: int
    state_element_bytes: int = 4

    reach = 0
    unmeasured = "lightning attention"

    @property
    def unwindowed(self) -> Lightning:
        """The same: it has no window."""
        return self

    def parts(self, hidden: int, tp: int) -> tuple[Part, ...]:
        """QKV, output gate, output projection."""
        width = self.heads * self.head_dim // tp
        return (
            Part("qkv", 3 * width, hidden, ("self_attn.qkv_proj",)),
            Part("gate", width, hidden, ("self_attn.output_gate",)),
            Part("o", hidden, width, ("self_attn.out_proj",)),
        )

    def cache(self, tp: int, element_bytes: int = 2) -> Cache:
        """One matrix a head, once a sequence."""
        return Cache("state", state_bytes=self.heads // tp * self.head_dim**2 * self.state_element_bytes)

    def pair_flops(self, tp: int) -> float:
        """Nothing grows with the context."""
        return 0.0

    def token_flops(self, tp: int) -> float:
        """FLOP of one token beyond the projections."""
        return 4.0 * (self.heads // tp) * self.head_dim**2

    @property
    def small_parameters(self) -> int:
        """Norm of the output."""
        return self.heads * self.head_dim


@dataclass(frozen=True)
class ShortConv:
    """Gated short convolution (LFM2): `kernel` taps over `width` channels."""

    width: int
    kernel: int

    reach = 0
    unmeasured = "short convolutions"

    @property
    def unwindowed(self) -> ShortConv:
        """The same: it has no window."""
        return self

    def parts(self, hidden: int, tp: int) -> tuple[Part, ...]:
        """Input projection (B, C, x) and output projection."""
        width = self.width // tp
        return Part("in", 3 * width, hidden, ("conv.in_proj",)), Part("o", hidden, width, ("conv.out_proj",))

    def cache(self, tp: int, element_bytes: int = 2) -> Cache:
        """The last columns, once a sequence."""
        column = 2 * self.width // tp
        return Cache("state", state_bytes=(self.kernel - 1) * column, draft_state_bytes=column)

    def pair_flops(self, tp: int) -> float:
        """Nothing grows with the context."""
        return 0.0

    def token_flops(self, tp: int) -> float:
        """FLOP of one token beyond the projections."""
        return 2.0 * self.kernel * self.width / tp

    @property
    def small_parameters(self) -> int:
        """Convolution."""
        return self.kernel * self.width
