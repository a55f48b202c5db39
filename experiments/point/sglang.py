"""From a `serve:` block to the settings of SGLang's scheduler."""

from __future__ import annotations

from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.blocks.sglang import Sglang
from specfleet.hardware.sglang.defaults import DP_CONSERVATIVENESS
from specfleet.sim import config as sim_config
from specfleet.sim.config import ON_HOST
from specfleet.sim.speculation.trees import TreeSpec

NOT_THE_SCHEDULERS = {"speculative_num_steps", "speculative_eagle_topk", "cuda_graph_max_bs", "cuda_graph_bs"}
"""Keys of `serve.sglang` that say what drafts and graphs are."""


def sglang_config(serve: Serve, tree: TreeSpec | None, ignore_eos: bool) -> sim_config.SglangConfig:
    """Returns what SGLang's scheduler is set up with, for a resolved `serve` block.

    Args:
        serve: the block.
        tree: that it drafts, None for a chain.
        ignore_eos: requests are known to write exactly what they ask for.
    """
    given = serve.sglang or Sglang()
    speculative = serve.speculative_config
    steps, topk = given.speculative_num_steps, given.speculative_eagle_topk
    if speculative is not None and speculative.method in ON_HOST:
        steps, topk = 1, 1
    elif tree is not None:
        steps, topk = steps or tree.depth, topk or tree.width
    assert serve.max_num_batched_tokens is not None
    chunk = serve.max_num_batched_tokens if serve.enable_chunked_prefill else -1
    settings = given.model_dump(exclude=NOT_THE_SCHEDULERS)
    if serve.data_parallel_size > 1:
        settings["schedule_conservativeness"] *= DP_CONSERVATIVENESS
    return sim_config.SglangConfig(
        chunked_prefill_size=chunk,
        speculative_num_steps=steps or 0,
        speculative_eagle_topk=topk or 1,
        ignore_eos=ignore_eos,
        **settings,
    )
