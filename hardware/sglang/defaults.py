"""What SGLang decides by itself: chunk, graphs, memory share and requests, by GPU and tensor parallelism.

After `ServerArgs` of SGLang 0.5.23, resolved for GPUs of known size with the CUDA default for prefill graphs.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20

REPORTED_MIB = (24_564, 46_068, 81_559, 143_771, 183_359)
"""Memory that `nvidia-smi` reports for RTX 4090, L40S, H100, H200 and B200, from which SGLang computes.

Start-up logs of engines report up to 3 % less.
"""
_NEAR = 0.03

_MOST_MIB = (20, 35, 60, 90, 160)
"""Upper borders of the classes of GPUs, GiB."""
_CHUNK = (2048, 4096, 4096, 8192, 8192, 16384)
_GRAPHS = ((8, 80), (48, 160), (32, 160), (256, 512), (256, 512), (512, 512))
"""Largest batch with a decode graph, below and from tensor parallelism 4."""
_PREFILL_LADDER = (
    (4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256), (4608, 2**24, 512)
)  # fmt: skip
"""Prompt tokens with a graph, up to the chunk: runs of (first, last, step)
(`generate_prefill_cuda_graph_batch_sizes`)."""

RESERVED_BASE_MIB, PER_CHUNK_TOKEN_MIB, PER_GPU_MIB = 512, 1.5, 128
PER_DECODE_GRAPH_MIB, PER_PREFILL_GRAPH_MIB, LATENT_PREFILL_GRAPHS_MIB = 2, 8, 1536
LEAST_ACTIVATION_TOKENS = 2048
"""Tokens that activations are sized by, at least, however small the chunk."""
LEAST_RESERVED_MIB, LARGE_GPU_MIB = 10 * 1024, 60 * 1024
"""Of memory kept for activations and graphs: at least 10 GiB on GPUs above 60 GiB."""
PER_DP_GRAPH_MIB, PER_LARGE_DP_GRAPH_MIB, LARGE_DP_GRAPHS = 3, 1.5, 300
"""With DP attention, for each rank and sequence of the largest decode graph; more where that is above 300."""
DP_CONSERVATIVENESS = 0.3
"""With DP attention `schedule_conservativeness` is multiplied by it (`_handle_data_parallelism`)."""

MAX_PREFILL_TOKENS = 16_384
MAX_RUNNING_REQUESTS_WITH_DRAFTS = 48
"""With EAGLE, EAGLE3, STANDALONE and NGRAM, whatever the GPU."""
NGRAM_DRAFT_TOKENS = 12
"""Tokens that an n-gram drafter has verified of a request, the last known one included."""

_PLAIN_LADDER = ((1, 2, 1), (4, 4, 1), (8, 12, 4), (16, 256, 8), (272, 496, 16), (512, 1024, 32))
_DRAFTS_LADDER = ((1, 8, 1), (10, 32, 2), (40, 64, 4), (72, 256, 8), (272, 1024, 16))
"""Batches with a decode graph: runs of (first, last, step), in sequences."""


@dataclass(frozen=True)
class DecodeGraphs:
    """Decode graphs that a server is asked for, in place of SGLang's own.

    Args:
        largest: `--cuda-graph-max-bs`: SGLang's batches up to this one; None is its own.
        batches: `--cuda-graph-bs`: these batches, whatever `largest` says; () is the ladder.
    """

    largest: int | None = None
    batches: tuple[int, ...] = ()


OWN_GRAPHS = DecodeGraphs()


@dataclass(frozen=True)
class SglangDefaults:
    """SGLang's automatic values on one kind of GPU.

    Args:
        hbm_bytes: the GPU's memory.
        tensor_parallel_size: GPUs of the server, all ranks together: `--tp-size`.
        data_parallel_size: ranks of DP attention, which share what the server is given: chunk and requests.
        chunk: the server's `--chunked-prefill-size`, before ranks share it; 0 is off, None is automatic.
        max_prefill_tokens: what prompts may have without chunks.
        latent: whether the model has latent attention (MLA).
        graphs: that are asked for.
    """

    hbm_bytes: int
    tensor_parallel_size: int
    data_parallel_size: int = 1
    chunk: int | None = None
    max_prefill_tokens: int = MAX_PREFILL_TOKENS
    latent: bool = False
    graphs: DecodeGraphs = OWN_GRAPHS

    @property
    def reported_mib(self) -> int:
        """Memory as the driver reports it to SGLang, MiB."""
        mib = self.hbm_bytes / MIB
        near = min(REPORTED_MIB, key=lambda known: abs(known - mib))
        return near if abs(near - mib) <= _NEAR * near else round(mib)

    @property
    def _class(self) -> int:
        return sum(self.reported_mib >= border * 1024 for border in _MOST_MIB)

    @property
    def chunked_prefill_size(self) -> int:
        """Tokens of prompts in a batch of a rank, if nothing is said."""
        return _CHUNK[self._class] // self.data_parallel_size

    @property
    def cuda_graph_max_bs(self) -> int:
        """Largest batch with a decode graph, sequences."""
        own = _GRAPHS[self._class][self.tensor_parallel_size >= 4]
        return max(self.graphs.batches, default=self.graphs.largest or own)

    @property
    def mem_fraction_static(self) -> float:
        """Share of the memory for weights and KV: what activations and graphs leave, to three digits.

        A chunk that is given counts in place of the automatic one, and prompts are captured up to it. Ranks
        share it afterwards (`handle_gpu_memory_settings`).
        """
        chunk, dp = _CHUNK[self._class] if self.chunk is None else self.chunk, self.data_parallel_size
        tokens = max(chunk or self.max_prefill_tokens, LEAST_ACTIVATION_TOKENS)
        reserved = RESERVED_BASE_MIB + PER_CHUNK_TOKEN_MIB * tokens + PER_GPU_MIB * self.tensor_parallel_size
        reserved += PER_DECODE_GRAPH_MIB * self.cuda_graph_max_bs
        sizes = sum(max(0, (min(last, chunk) - first) // step + 1) for first, last, step in _PREFILL_LADDER)
        reserved += LATENT_PREFILL_GRAPHS_MIB if self.latent else PER_PREFILL_GRAPH_MIB * sizes
        if dp > 1:
            large = PER_LARGE_DP_GRAPH_MIB if self.cuda_graph_max_bs > LARGE_DP_GRAPHS else 0
            reserved += dp * self.cuda_graph_max_bs * (PER_DP_GRAPH_MIB + large)
        if self.reported_mib > LARGE_GPU_MIB:
            reserved = max(reserved, LEAST_RESERVED_MIB)
        return round(1 - reserved / self.reported_mib, 3)

    def capture_batches(self, max_running_requests: int, tokens_per_request: int) -> tuple[int, ...]:
        """Batches with a decode graph, sequences, in growing order (`get_batch_sizes_to_capture`).

        Under DP attention a rank's GPUs share out a batch's tokens; what they do not divide has no graph.

        Args:
            max_running_requests: no larger batch is captured; where the ladder goes beyond it, it is.
            tokens_per_request: 1, or 1 + drafts: then there are more sizes.
        """
        gpus = self.tensor_parallel_size // self.data_parallel_size if self.data_parallel_size > 1 else 1
        ladder, most = _DRAFTS_LADDER if tokens_per_request > 1 else _PLAIN_LADDER, self.cuda_graph_max_bs
        ladder = (*ladder[:-1], (ladder[-1][0], max(ladder[-1][1], most), ladder[-1][2]))
        rungs = self.graphs.batches or [
            n for first, last, step in ladder for n in range(first, last + 1, step)
        ]
        requests = -(-max_running_requests // gpus) * gpus
        sizes = {*(size for size in rungs if size < most), most} | ({requests} if most > requests else set())
        return tuple(sorted(s for s in sizes if s <= requests and s * tokens_per_request % gpus == 0))


def max_running_requests_with_drafts(data_parallel_size: int = 1) -> int:
    """Requests that a rank runs at once with speculation, where nothing is said."""
    return max(MAX_RUNNING_REQUESTS_WITH_DRAFTS // data_parallel_size, 1)


def max_running_requests(kv_tokens: int, context_length: int) -> int:
    """Requests that run at once without speculation, by the KV pool: 512 of full length, 2048 to 4096."""
    return min(max(kv_tokens * 512 // context_length, 2048), 4096, max(kv_tokens // 2, 1))


def draft_shape(model: str, method: str) -> tuple[int, int, int]:
    """Returns `speculative_num_steps`, `speculative_eagle_topk`, `speculative_num_draft_tokens` by default.

    Args:
        model: the target's name. method: `eagle`, `eagle3` or another.
    """
    eagle = method in ("eagle", "eagle3")
    return (5, 4, 8) if eagle and any(name in model.lower() for name in ("llama", "grok")) else (3, 1, 4)
