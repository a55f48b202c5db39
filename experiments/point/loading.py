"""How long a new replica takes from its process's start to its first request."""

from __future__ import annotations

from specfleet.hardware.memorypeak import drafter_weight_bytes, weight_bytes
from specfleet.hardware.placement import Placement

ONE_GPU_BYTES_PER_S, MOST_BYTES_PER_S = 1.1e9, 4.3e9
"""Safetensors through vLLM's default loader: Qwen3-30B-A3B on one H200 57.4 s (1.1 GB/s), DeepSeek-R1 on
eight 160 s (4.3 GB/s); docs.vllm.ai, "Loading Model Weights with InstantTensor", Benchmarks. Loaders made for
it read ten to thirty times as fast (35 and 45 GB/s there)."""
ENGINE_START_S = 58.0
"""Beside the weights: process, torch.compile from its cache, profiling, CUDA graphs. 59 s from a pod's start
to its first answer, of which weights took 0.9 s (vllm-project/vllm issue 20264, June 2025; Llama 3.2, one
GPU)."""


def load_s(placement: Placement) -> float:
    """Returns the seconds that an engine takes to start: its weights, read by all of its GPUs together, and
    `ENGINE_START_S`."""
    gpus = placement.gpus
    rate = min(gpus * ONE_GPU_BYTES_PER_S, MOST_BYTES_PER_S)
    return read_bytes(placement) / rate + ENGINE_START_S


def read_bytes(placement: Placement) -> int:
    """Returns the bytes of target and drafter on all GPUs of a replica."""
    return placement.gpus * (weight_bytes(placement) + drafter_weight_bytes(placement))
