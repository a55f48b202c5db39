"""One GPU: the datasheet figures that the cost and the memory model read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from specfleet.hardware.constants import measured_file

OVERRIDABLE = (
    "hbm_bytes",
    "hbm_bytes_per_s",
    "p2p",
    "link_gpus",
    "network_bytes_per_s",
    "tdp_w",
    "price_per_hour_usd",
    "price_date",
    "constants",
)
"""Fields that differ between two machines with the same GPU; `constants` is a file of `specfleet measure`."""

MOST = 1e18
"""Of bytes, bytes/s and FLOP/s of one GPU."""

LEAST_FLOPS_PER_S = 1e9

SLOWEST_READ_S = 100.0
"""To read the whole memory once; a rate that takes longer is given in other units."""


@dataclass(frozen=True)
class Accelerator:
    """A GPU as a server sees it.

    `hbm_bytes` is the memory that the driver reports, not the number on the box. `flops_per_s` holds dense
    peaks by data type (bfloat16, float16, fp8). `p2p` says whether GPUs of one server reach each other's
    memory, up to `link_gpus` of them over `link` (words for the reader); without it every all-reduce goes
    through the host. `network_bytes_per_s` is a GPU's share of the network between servers, one direction.
    `constants` names the entry of `measured/constants.json` whose kernels the GPU runs,
    `attention` the rows its decode attention is fitted on ("all", or "cold": KV beyond the L2 only).
    `compute_capability` is CUDA's, Hopper's if left out: kernels of MXFP4 experts go by it.
    `tdp_w` is what the board may draw, watts; without it no energy is told.
    `price_per_hour_usd` is a default to edit, as of `price_date`. `source` says where each value comes from.
    """

    name: str
    hbm_bytes: int
    hbm_bytes_per_s: float
    flops_per_s: Mapping[str, float] = field(hash=False)
    sms: int
    p2p: bool
    constants: str
    l2_bytes: int
    link: str = ""
    link_gpus: int = 8
    network_bytes_per_s: float = 50e9
    attention: str = "all"
    compute_capability: float = 9.0
    tdp_w: float | None = None
    price_per_hour_usd: float | None = None
    price_date: str | None = None
    aliases: tuple[str, ...] = ()
    source: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Reject sizes and rates that are not positive."""
        for key in ("hbm_bytes", "hbm_bytes_per_s", "sms", "l2_bytes", "link_gpus", "network_bytes_per_s"):
            if getattr(self, key) <= 0:
                raise ValueError(
                    f"accelerator {self.name}: {key} is {getattr(self, key)}; it must be positive"
                )
            if getattr(self, key) > MOST:
                raise ValueError(
                    f"accelerator {self.name}: {key} is {getattr(self, key):g}; at most {MOST:g}"
                )
        if self.hbm_bytes > SLOWEST_READ_S * self.hbm_bytes_per_s:
            raise ValueError(
                f"accelerator {self.name}: reading hbm_bytes at hbm_bytes_per_s, {self.hbm_bytes_per_s:g}, "
                f"takes over {SLOWEST_READ_S:g} s; give bytes/s"
            )
        if self.attention not in ("all", "cold"):
            raise ValueError(f"accelerator {self.name}: attention is {self.attention!r}; use all or cold")
        if "bfloat16" not in self.flops_per_s:
            raise ValueError(
                f"accelerator {self.name}: flops_per_s lacks bfloat16; give the dense peak in FLOP/s"
            )
        for dtype, rate in self.flops_per_s.items():
            if not LEAST_FLOPS_PER_S <= rate <= MOST:
                raise ValueError(
                    f"accelerator {self.name}: flops_per_s.{dtype} is {rate:g}; use "
                    f"{LEAST_FLOPS_PER_S:g} to {MOST:g} FLOP/s"
                )

    def linked(self, gpus: int) -> bool:
        """Whether `gpus` GPUs of a server all reach each other's memory."""
        return self.p2p and gpus <= self.link_gpus

    def override(self, **changes: int | float | bool | str | None) -> Accelerator:
        """The same GPU with other values for the keys in `OVERRIDABLE`.

        Raises ValueError for any other key: what the kernels are measured on cannot be changed by hand. For
        `constants`, one must have measured: the path of a .json file that `specfleet measure` wrote.
        """
        measured = changes.get("constants")
        if measured is not None and not measured_file(str(measured)):
            raise ValueError(
                f"accelerator {self.name}: constants {measured!r} must be the path of a .json file that "
                "`specfleet measure` wrote"
            )
        for key in changes:
            if key not in OVERRIDABLE:
                close = get_close_matches(key, OVERRIDABLE, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ValueError(
                    f"accelerator {self.name}: {key!r} cannot be overridden{hint} "
                    f"(possible: {', '.join(OVERRIDABLE)})"
                )
        return replace(self, **changes)  # type: ignore[arg-type]
