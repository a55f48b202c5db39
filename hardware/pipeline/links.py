"""What lies between two stages of a pipeline: hidden states sent on, and how long that takes."""

from __future__ import annotations

import numpy as np

from specfleet.hardware.interconnect import (
    GATHER,
    MOST_GPUS,
    all_reduce_law,
    all_reduce_s,
    collective_s,
    is_gather_measured,
)
from specfleet.hardware.kernels import Array
from specfleet.hardware.placement import Placement

STREAMS = 2
"""Tensors that a stage hands on: hidden states and residual (`IntermediateTensors` of vLLM's models)."""

NETWORK_SEND_S = 20e-6
"""Of a send between servers, whatever its size: assumed, 10 to 40 us; no public measurement is used."""

RELAYED = ("eagle3", "dflash", "dspark")
"""Methods whose drafter, on the last stage, reads hidden states of layers on the stages before."""


def crosses_servers(placement: Placement, stage: int) -> bool:
    """Whether a stage and the next are on two servers, filled one after another with `MOST_GPUS` GPUs."""
    if placement.gpus <= min(MOST_GPUS, placement.accelerator.link_gpus):
        return False
    per_server, tp = MOST_GPUS, placement.tensor_parallel_size
    return stage * tp // per_server != (stage + 1) * tp // per_server


def sent_values(placement: Placement, layers_before: int) -> int:
    """Values a token that leave a stage behind so many layers: two streams, and what a drafter reads."""
    model, drafter = placement.model, placement.drafter
    streams = STREAMS
    if drafter is not None and drafter.method in RELAYED:
        streams += sum(layer <= layers_before for layer in relayed_layers(placement))
    return streams * model.hidden_size


def relayed_layers(placement: Placement) -> tuple[int, ...]:
    """Layers before which a drafter's states are taken: vLLM's default for EAGLE-3, else evenly spread."""
    drafter, layers = placement.drafter, placement.model.num_layers
    if drafter is None or drafter.method not in RELAYED:
        return ()
    if drafter.fc_input_multiple == 3:
        return 2, layers // 2, layers - 3
    count = drafter.fc_input_multiple
    return tuple(layers * (place + 1) // count for place in range(count))


def send_s(placement: Placement, stage: int, layers_before: int, rows: Array) -> Array:
    """Seconds until the next stage has the hidden states of `rows` tokens; zero rows take none.

    Every GPU of a stage sends its share to one of the next, which gather the whole (`send_tensor_dict` with
    `all_gather_group`). Within a server a send takes what NCCL needs to gather twice as much among two GPUs:
    each then sends as many bytes to the other; where that was not measured, an all-reduce of as many. Between
    servers: `NETWORK_SEND_S` and the bytes at the GPU's share of the network.
    """
    gpu, tp = placement.accelerator, placement.tensor_parallel_size
    total = rows * (2.0 * sent_values(placement, layers_before))
    each = total / tp
    if crosses_servers(placement, stage):
        seconds = NETWORK_SEND_S + each / gpu.network_bytes_per_s
    else:
        seconds = _between_two_s(placement, each)
    if tp > 1:
        seconds = seconds + _gather_s(placement, tp, total)
    return np.where(rows > 0, seconds, 0.0)


def _between_two_s(placement: Placement, sent: Array) -> Array:
    gpu = placement.accelerator
    if gpu.linked(2) and is_gather_measured(gpu.constants, 2):
        return collective_s(gpu.constants, GATHER, 2, 2.0 * sent)
    law = all_reduce_law(gpu.constants, 2, gpu.linked(2), placement.profile.kernels)
    return all_reduce_s(sent, law)


def _gather_s(placement: Placement, tp: int, total: Array) -> Array:
    gpu = placement.accelerator
    if gpu.linked(tp) and is_gather_measured(gpu.constants, tp):
        return collective_s(gpu.constants, GATHER, tp, total)
    law = placement.all_reduce_law(tp)
    assert law is not None
    return all_reduce_s(total, law)
