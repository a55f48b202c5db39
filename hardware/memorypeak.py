"""What an engine holds on one GPU beside its KV pool: weights, the profiling peak, NCCL, CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.hardware.layers.formats import weight_format
from specfleet.hardware.memoryrules import MemoryRules
from specfleet.hardware.model import DrafterSpec, ModelSpec
from specfleet.hardware.placement import Placement

MIB = 2**20
_UNCHUNKED_TOKENS = 2048
"""Least token budget without chunked prefill (vLLM before V1)."""
HOPPER, BLACKWELL = 9.0, 10.0
_PACKED = "mxfp4"


def weight_bytes(placement: Placement) -> int:
    """Bytes of the target's loaded weights on one GPU, as the allocator hands them out.

    Data-parallel ranks hold all but the experts each; the experts are spread over all of them. Of a pipeline
    the first stage holds the embedding, the last the LM head.
    """
    model, tp = placement.model, placement.tensor_parallel_size
    matrices = placement.vocabulary_matrices
    tensors = _tensors(model, placement.quantization, tp, matrices)
    held = sum(allocator_slack(size) * count for size, count in tensors)
    shared = model.routed_bytes(placement.quantization, tp)
    elsewhere = shared - shared // placement.data_parallel_size
    whole = model.weight_bytes(placement.quantization, tp) - elsewhere
    other_stages = (1 if model.tie_word_embeddings else 2) - placement.vocabulary_matrices
    return whole - other_stages * model.embedding_bytes(tp) + padded_expert_bytes(placement) + held


def padded_expert_bytes(placement: Placement) -> int:
    """Bytes that routed experts in MXFP4 occupy on one GPU beyond those of their file; 0 in other formats.

    Their kernels load whole tiles, as `Mxfp4MoEMethod.create_weights` of vLLM rounds them: the width on one
    GPU and the hidden size up to 128 and 256 below compute capability 9 (Marlin), the width alone to 64 at 9
    (Triton), both to 256 from 10 on (FlashInfer). One log bears out the first: gpt-oss-20b (2,880 wide) holds
    12.81 GiB in its file and 13.72 GiB loaded on one A100 (vLLM 0.19), and 2,944 x 3,072 make it 13.67. Of
    the other two no log was seen. All engines are taken to do the same.
    """
    model, tp = placement.model, placement.tensor_parallel_size
    width_to, hidden_to = _tiles(placement.accelerator.compute_capability)
    byte = weight_format(_PACKED).bits / 8
    more = 0.0
    for run in model.runs:
        experts = run.experts
        if not experts or model.format_of(run, "experts", placement.quantization) != _PACKED:
            continue
        matrices = experts.expert_parameters(model.hidden_size) // (experts.width * model.hidden_size)
        ways, ranks = placement.expert_split(tp)
        width = -(-experts.width // ways)
        padded = _up(width, width_to) * _up(model.hidden_size, hidden_to)
        more += (
            run.layers
            * (experts.experts / ranks)
            * matrices
            * byte
            * (padded - experts.width / ways * model.hidden_size)
        )
    return int(more)


def _tiles(compute_capability: float) -> tuple[int, int]:
    if compute_capability < HOPPER:
        return 128, 256
    return (64, 1) if compute_capability < BLACKWELL else (256, 256)


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


def drafter_weight_bytes(placement: Placement) -> int:
    """Bytes of the drafter's weights on one GPU, as the allocator hands them out, 0 without one.

    Experts of its own are spread, too. On the last stage of a pipeline there is no embedding to share.
    """
    drafter, tp = placement.drafter, placement.draft_tensor_parallel_size
    if drafter is None:
        return 0
    spread = placement.data_parallel_size if tp == placement.tensor_parallel_size else 1
    routed = drafter.model.routed_bytes(None, tp) if drafter.model is not None else 0
    held = sum(allocator_slack(size) * count for size, count in _drafter_tensors(drafter, tp))
    lone = placement.stage is not None and drafter.fuses and not drafter.own_embedding
    embedding = drafter.model.embedding_bytes(tp) if lone and drafter.model is not None else 0
    return drafter.weight_bytes(tp) - (routed - routed // spread) + held + embedding


def allocator_slack(size: int) -> int:
    """Bytes that a tensor of `size` bytes occupies beyond itself.

    PyTorch's allocator rounds blocks above 10 MiB up to whole 2 MiB and keeps a rest of at most 1 MiB with
    the block. This is the 0.06 GiB that Qwen2.5-7B logs above its parameters.
    """
    if size < 10 * MIB:
        return 0
    rest = -size % (2 * MIB)
    return rest if rest <= MIB else 0


def _tensors(model: ModelSpec, quantization: str | None, tp: int, matrices: int) -> Iterator[tuple[int, int]]:
    """(bytes, how many) of the large weight tensors on one GPU; `matrices` are those of the vocabulary."""
    for group in model.layer_groups(tp, quantization):
        for (n, k), stored in zip(group.gemms, group.formats, strict=True):
            yield int(n * k * weight_format(stored).weight_bytes), group.layers
    yield model.embedding_bytes(tp), matrices


def _drafter_tensors(drafter: DrafterSpec, tp: int) -> Iterator[tuple[int, int]]:
    """(bytes, how many) of a drafter's large weight tensors on one GPU."""
    model, head = drafter.model, 2 * drafter.head_parameters(tp)
    if model is None:
        if drafter.method == "medusa":
            yield 2 * drafter.target_hidden_size**2, drafter.medusa_heads
            yield head, drafter.medusa_heads
    elif drafter.method == "draft_model":
        yield from _tensors(model, None, tp, 1 if model.tie_word_embeddings else 2)
    else:
        for group in model.layer_groups(tp, None):
            for (n, k), stored in zip(group.gemms, group.formats, strict=True):
                yield int(n * k * weight_format(stored).weight_bytes), group.layers
        if fc := drafter.fc_gemm(tp):
            yield 2 * fc[0] * fc[1], 1
        yield head, int(drafter.own_lm_head)
        yield model.embedding_bytes(tp), int(drafter.own_embedding)


def profiled_tokens(placement: Placement, max_model_len: int | None) -> int:
    """Tokens of the profiling pass: the token budget; in builds without chunked prefill, by prompt length."""
    rules = placement.profile.memory
    if not rules.unchunked_up_to or max_model_len is None:
        return placement.max_num_batched_tokens
    return max(max_model_len, _UNCHUNKED_TOKENS) if _unchunked(rules, max_model_len) else rules.chunk_tokens


def _unchunked(rules: MemoryRules, max_model_len: int) -> bool:
    return max_model_len <= rules.unchunked_up_to


def forward_peak_bytes(placement: Placement, max_model_len: int | None = None) -> int:
    """Peak of the profiling pass through the layers.

    `2 b (a I / TP + c h)` for b tokens; a mixture of experts holds its k inputs and outputs at the wider of
    hidden size and gate/up, and k activations, instead of a I.
    """
    model, tp, rules = placement.model, placement.tensor_parallel_size, placement.profile.memory
    dense = rules.forward_mlp_widths * model.intermediate_size / tp
    width = dense if model.num_dense_layers or not model.num_experts else 0.0
    if model.num_experts:
        expert = model.moe_intermediate_size / placement.expert_split(tp)[0]
        routed = model.num_experts_per_tok * (max(2 * expert, model.hidden_size) + expert)
        shared = rules.forward_mlp_widths * model.shared_expert_intermediate_size / tp
        width = max(width, routed + shared)
    width += rules.forward_hidden_widths * model.hidden_size
    return rules.forward_bytes + round(2 * profiled_tokens(placement, max_model_len) * width)


def sampler_peak_bytes(placement: Placement, max_model_len: int | None = None) -> int:
    """Peak of the profiled sampler: float32 copies of max_num_seqs x vocabulary, whatever the TP size.

    The pass's last hidden states are still held. 0 where the build profiles a chunk without sampling, and on
    the stages of a pipeline before the last.
    """
    model, rules = placement.model, placement.profile.memory
    if not placement.ends:
        return 0
    if rules.unchunked_up_to and max_model_len is not None and not _unchunked(rules, max_model_len):
        return 0
    row = 4 * model.vocab_size
    copies = rules.copies(speculates=placement.drafter is not None) * placement.max_num_seqs
    buffer = placement.accelerator.sms if rules.sampler_row_per_sm else 0
    hidden = 2 * profiled_tokens(placement, max_model_len) * model.hidden_size
    return hidden + round((copies + buffer) * row) + rules.sampler_bytes


def persistent_bytes(placement: Placement) -> int:
    """Sampler state that stays allocated: penalty counters of max_num_seqs x vocabulary."""
    state = placement.profile.memory.persistent_copies * placement.max_num_seqs * placement.ends
    return round(4 * state * placement.model.vocab_size)


def activation_bytes(placement: Placement, max_model_len: int | None = None) -> int:
    """Peak of the profiling run beyond the weights: forward pass or sampler, and what stays."""
    forward = forward_peak_bytes(placement, max_model_len)
    return max(forward, sampler_peak_bytes(placement, max_model_len)) + persistent_bytes(placement)


def non_torch_bytes(placement: Placement) -> int:
    """Memory that torch does not see: context growth, NCCL, buffers that GPUs of a group share."""
    tp, rules = placement.tensor_parallel_size, placement.profile.memory
    if tp == 1:
        return rules.non_torch_bytes
    linked = placement.accelerator.linked(tp)
    peers = rules.non_torch_linked_bytes + tp * rules.non_torch_peer_bytes if linked else 0
    return rules.non_torch_tensor_parallel_bytes + peers


def cudagraph_bytes(placement: Placement) -> int:
    """Memory of the captured graphs: a constant per captured size and layer, drafter layers included.

    An estimate within about a factor of two: see `cudagraph_bytes_per_layer_and_size` of the engine profile.
    """
    drafter = placement.drafter
    layers = placement.model.num_layers + (drafter.model.num_layers if drafter and drafter.model else 0)
    return len(placement.capture_sizes) * layers * placement.profile.cudagraph_bytes_per_layer_and_size
