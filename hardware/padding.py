"""What MXFP4 expert kernels add to the weights they load: sizes rounded up to whole tiles.

| compute capability | kernel of vLLM | width on one GPU to | hidden size to |
|---|---|---|---|
| below 9 | Marlin | 128 | 256 |
| 9 (Hopper) | Triton | 64 | as it is |
| 10 and above | FlashInfer | 256 | 256 |

Source: `Mxfp4MoEMethod.create_weights` of vLLM 0.10 to 0.19. gpt-oss-20b (2,880 wide) holds 12.81 GiB in its
file and logs 13.72 GiB loaded on one A100 (vLLM 0.19); 2,944 x 3,072 make it 13.67.
"""

from __future__ import annotations

from specfleet.hardware.layers.formats import weight_format
from specfleet.hardware.placement import Placement

HOPPER, BLACKWELL = 9.0, 10.0
_PACKED = "mxfp4"


def padded_expert_bytes(placement: Placement) -> int:
    """Bytes that routed experts in MXFP4 occupy on one GPU beyond those of their file; 0 in other formats."""
    model, tp = placement.model, placement.tensor_parallel_size
    width_to, hidden_to = _tiles(placement.accelerator.compute_capability)
    byte = weight_format(_PACKED).bits / 8
    more = 0.0
    for run in model.runs:
        experts = run.experts
        if not experts or model.format_of(run, "experts", placement.quantization) != _PACKED:
            continue
        matrices = experts.expert_parameters(model.hidden_size) // (experts.width * model.hidden_size)
        width = -(-experts.width // tp)
        padded = _up(width, width_to) * _up(model.hidden_size, hidden_to)
        more += (
            run.layers * experts.experts * matrices * byte * (padded - experts.width / tp * model.hidden_size)
        )
    return int(more)


def _tiles(compute_capability: float) -> tuple[int, int]:
    if compute_capability < HOPPER:
        return 128, 256
    return (64, 1) if compute_capability < BLACKWELL else (256, 256)


def _up(size: int, to: int) -> int:
    return -(-size // to) * to
