"""Kinds of feed-forward: a dense MLP, routed experts with what stands beside them."""

from __future__ import annotations

from dataclasses import dataclass, field

from specfleet.hardware.layers.parts import Gemm, Part


def _mlp(hidden: int, width: int, gated: bool, root: str, role: str) -> tuple[Part, ...]:
    if not width:
        return ()
    first = f"{root}.gate_proj" if gated else f"{root}.up_proj"
    names = (first, f"{root}.up_proj", f"{root}.gate_up_proj", f"{root}.w1", f"{root}.fc1")
    down = (f"{root}.down_proj", f"{root}.w2", f"{root}.fc2")
    return (
        Part(f"{role}_up", (2 if gated else 1) * width, hidden, names),
        Part(f"{role}_down", hidden, width, down),
    )


@dataclass(frozen=True)
class DenseMlp:
    """Gate and up, down; without `gated` up and down. `root` is the module's name in the checkpoint."""

    width: int
    gated: bool = True
    root: str = field(default="mlp", compare=False)

    def parts(self, hidden: int, tp: int) -> tuple[Part, ...]:
        """The projections on one GPU."""
        return _mlp(hidden, self.width // tp, self.gated, self.root, "mlp")

    @property
    def router(self) -> None:
        """None: every token passes through."""


LATENT_IN = ("fc1_latent_proj", "routed_expert_down_proj")
LATENT_OUT = ("fc2_latent_proj", "routed_expert_up_proj")
"""Modules of the projections around experts, as Nemotron and Kimi name them."""


@dataclass(frozen=True)
class ExpertMlp:
    """`experts` MLPs of `width`, each token through `per_token` of them and through `shared_width` besides.

    `latent` above 0 is the width that experts read and write, behind two projections (Nemotron 3 Super, Kimi
    K3).
    `router_bias`: experts are chosen by scores with a correction added (DeepSeek-V3, GLM-4.5, MiniMax-M2).
    `shared_root` and `root` are the modules' names in the checkpoint.
    """

    experts: int
    per_token: int
    width: int
    shared_width: int = 0
    gated: bool = True
    latent: int = 0
    router_bias: bool = field(default=False, compare=False)
    root: str = field(default="mlp.experts", compare=False)
    shared_root: str = field(default="mlp.shared_expert", compare=False)

    def parts(self, hidden: int, tp: int) -> tuple[Part, ...]:
        """What every token passes through; router and experts are apart."""
        around = self.root.rpartition(".")[0]
        latent = (
            (
                Part("latent_in", self.latent, hidden, tuple(f"{around}.{name}" for name in LATENT_IN)),
                Part("latent_out", hidden, self.latent, tuple(f"{around}.{name}" for name in LATENT_OUT)),
            )
            if self.latent
            else ()
        )
        shared = self.shared_width // tp
        return (*_mlp(hidden, shared, self.gated, self.shared_root, "shared"), *latent)

    def router_gemm(self, hidden: int) -> Gemm:
        """The router, whole on every GPU, in 16 bits."""
        return self.experts, hidden

    def expert_parameters(self, hidden: int) -> int:
        """Weights of one expert: gate, up and down projection, or the last two."""
        return (3 if self.gated else 2) * (self.latent or hidden) * self.width

    @property
    def expert_modules(self) -> tuple[str, ...]:
        """Names of the experts' weights in checkpoints."""
        first = f"{self.root}.0"
        return (
            *(f"{first}.{name}" for name in ("up_proj", "gate_proj", "w1", "w3")),
            f"{self.root}.gate_up_proj",
            self.root,
        )
