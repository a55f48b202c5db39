"""Rules about `engine: sglang`: whose settings go with whose scheduler, and what SGLang decides by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specfleet.experiments.load.rules.base import VLLM_ALONE, Conflict, scheduler_of
from specfleet.experiments.point.build import placement, pool
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.hardware.sglang.defaults import MAX_RUNNING_REQUESTS_WITH_DRAFTS


def is_sglang(serve: Serve) -> bool:
    """Whether SGLang's scheduler decides."""
    return scheduler_of(serve) == "sglang"


def sglang_conflicts(serve: Serve) -> Iterator[Conflict]:
    """Settings of the other engine."""
    if not is_sglang(serve):
        if serve.sglang is not None:
            message = (
                f"belongs to engine: sglang, and the engine is {serve.engine}; remove it, or change that"
            )
            yield Conflict.at(message, "serve.sglang", "serve.engine")
        return
    share = serve.gpu_memory_utilization
    if share is not None and share <= 0.0:
        message = (
            "SGLang keeps 1.5 MiB a token of it for activations, which leaves no memory for weights and KV; "
            "use a smaller one, or give mem_fraction_static"
        )
        yield Conflict.at(message, "serve.max_num_batched_tokens")
    for key, default in VLLM_ALONE.items():
        if getattr(serve, key) != default:
            hint = "; use serve.sglang.enable_priority_scheduling" if key == "scheduling_policy" else ""
            message = f"is a setting of vLLM's scheduler, and the engine is {serve.engine}; remove it{hint}"
            yield Conflict.at(message, f"serve.{key}", "serve.engine")

    for key in ("cudagraph_capture_sizes", "max_cudagraph_capture_size"):
        if getattr(serve, key) is not None:
            message = (
                f"counts tokens, as vLLM does, and the engine is {serve.engine}; use sglang.cuda_graph_bs"
            )
            yield Conflict.at(message, f"serve.{key}", "serve.engine")


def sglang_notices(experiment: Experiment, points: Iterable[Experiment]) -> Iterator[str]:
    """What SGLang does by itself and nobody typed, where it changes an answer."""
    mine = [point for point in points if is_sglang(point.serve)]
    typed = experiment.serve.max_num_seqs is not None or "serve.max_num_seqs" in experiment.sweep.axes
    limit = MAX_RUNNING_REQUESTS_WITH_DRAFTS
    if not typed and any(_reaches(point, limit) for point in mine):
        yield (
            f"with speculation SGLang runs {limit} requests at once unless max_running_requests is given; "
            "those beyond wait. Against the plain engine, which takes them all, that says where the queue "
            "costs more than drafts gain, not where verification erases the gain: to ask that, give "
            "max_running_requests"
        )
    yield from dict.fromkeys(_beyond_graphs(point.serve) for point in mine if _own_graphs(point))
    short = [point.serve for point in mine if pool(point.serve).tokens < (point.serve.max_model_len or 0)]
    if short:
        yield (
            f"the KV pool holds {pool(short[0]).tokens} tokens, fewer than max_model_len: SGLang starts, "
            "cuts outputs that do not fit and refuses longer prompts"
        )


def _own_graphs(point: Experiment) -> bool:
    """Whether a point asks for decode graphs that its batches may go beyond."""
    given, serve = point.serve.sglang, point.serve
    asks = given is not None and not (given.cuda_graph_max_bs is None and given.cuda_graph_bs is None)
    return asks and _largest_graph(serve) < (serve.max_num_seqs or 0)


def _largest_graph(serve: Serve) -> int:
    """Sequences of the largest batch with a decode graph."""
    place = placement(serve)
    return max(place.capture_sizes, default=0) // place.query_len


def _beyond_graphs(serve: Serve) -> str:
    return (
        f"batches of more than {_largest_graph(serve)} sequences have no decode graph: their launches are "
        "priced as if they had, which no run has timed; a server takes longer for them"
    )


def _reaches(point: Experiment, limit: int) -> bool:
    """Whether a point drafts under a load of more requests than that."""
    most = point.workload.max_concurrency
    servers = point.deployment.replicas
    return point.serve.speculative_config is not None and (most is None or most > limit * servers)
