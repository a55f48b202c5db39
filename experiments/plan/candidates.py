"""What may be bought: every engine of a plan, its price, and why some cannot be had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from specfleet.experiments.load.defaults import filled
from specfleet.experiments.load.rules.conflicts import conflicts
from specfleet.experiments.load.rules.plan import gpu_name
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.acceptance import Process
from specfleet.experiments.schema.blocks.experiment import Experiment, Sweep
from specfleet.experiments.schema.blocks.plan import Drafting, Plan
from specfleet.experiments.schema.blocks.serve import Serve, SpeculativeConfig

DECIDED_BY_THE_ENGINE = (
    "gpu_memory_utilization",
    "max_num_batched_tokens",
    "max_num_seqs",
    "scheduler_reserve_full_isl",
    "async_scheduling",
)
"""Keys of `serve` whose defaults depend on profile and drafter: decided for each candidate anew."""


@dataclass(frozen=True)
class Candidate:
    """One engine that could serve the traffic, in as many replicas as it takes.

    Attributes:
        gpu: as named in the plan.
        tensor_parallel_size: GPUs of a replica, or of each of its ranks.
        data_parallel_size: ranks of a replica that share experts.
        pipeline_parallel_size: stages of a replica, one after another.
        expert_parallel: experts are whole on each GPU.
        quantization: of the weights; None is `dtype`.
        method: `none`, or the drafter's method.
        drafter: name of the drafter; "" for plain decoding and n-grams.
        k: drafts a round; 0 for plain decoding.
        price_per_hour_usd: of one GPU.
        config: the experiment with this engine, every default filled in.
        refusal: why it cannot be had; "" if it can.
        most_replicas: limit of the plan; None is no limit.
    """

    gpu: str
    tensor_parallel_size: int
    quantization: str | None
    method: str
    drafter: str
    k: int
    price_per_hour_usd: float
    config: Experiment
    refusal: str = ""
    most_replicas: int | None = None
    data_parallel_size: int = 1
    expert_parallel: bool = False
    pipeline_parallel_size: int = 1

    @property
    def id(self) -> str:
        """Names it: `4 x h100-sxm fp8, eagle3 K = 3`."""
        drafting = f"{self.method} K = {self.k}" if self.k else "plain"
        return f"{self.engine}, {drafting}"

    @property
    def engine(self) -> str:
        """Names its GPUs and weights: `8 x h200 fp8`, `8 x h200 (DP 4, TP 2, EP) fp8`, `2 x l40s (PP 2)`."""
        apart = (("DP", self.data_parallel_size), ("PP", self.pipeline_parallel_size))
        ways = [f"{name} {count}" for name, count in apart if count > 1]
        ways += [f"TP {self.tensor_parallel_size}"] if ways and self.tensor_parallel_size > 1 else []
        ways += ["EP"] if self.expert_parallel else []
        spread = f" ({', '.join(ways)})" if ways else ""
        return f"{self.gpus} x {self.gpu}{spread} {self.weights}"

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.tensor_parallel_size * self.data_parallel_size * self.pipeline_parallel_size

    @property
    def kind(self) -> tuple[str, int, int, int, bool, str | None]:
        """What tells engines apart, drafting aside."""
        ways = self.tensor_parallel_size, self.data_parallel_size, self.pipeline_parallel_size
        return self.gpu, *ways, self.expert_parallel, self.quantization

    @property
    def weights(self) -> str:
        """Type of the weights."""
        serve = self.config.serve
        stored = lookups.model(serve.model).stored_as(self.quantization)
        return stored or {"bfloat16": "bf16", "float16": "fp16"}[serve.dtype]

    @property
    def replica_usd(self) -> float:
        """Dollars an hour of one replica."""
        return self.price_per_hour_usd * self.gpus

    @property
    def drafting(self) -> tuple[str, str]:
        """What tells ways to draft apart, K aside."""
        return self.method, self.drafter


def candidates(experiment: Experiment, given: Mapping[str, object]) -> tuple[Candidate, ...]:
    """Returns every combination of a plan, those that cannot be had with the reason.

    Args:
        experiment: with its `plan:` block.
        given: the keys of `serve:` as written; what the engine decides is decided for each candidate anew.
    """
    plan = experiment.plan or Plan()
    listed = plan.candidates
    serve = experiment.serve.model_copy(
        update={key: None for key in DECIDED_BY_THE_ENGINE if key not in given}
    )
    gpus = listed.gpu or (serve.gpu,)
    sizes = listed.tensor_parallel_size or (serve.tensor_parallel_size,)
    weights = listed.quantization or (serve.quantization,)
    ways = tuple(_ways(experiment))
    return tuple(
        _candidate(
            experiment,
            plan,
            serve.model_copy(
                update={
                    "gpu": gpu,
                    "tensor_parallel_size": tp,
                    "data_parallel_size": dp,
                    "pipeline_parallel_size": pp,
                    "enable_expert_parallel": ep,
                    "quantization": quantization,
                }
            ),
            drafting,
            k,
        )
        for gpu in gpus
        for tp in sizes
        for dp in listed.data_parallel_size or (serve.data_parallel_size,)
        for pp in listed.pipeline_parallel_size or (serve.pipeline_parallel_size,)
        for ep in _experts(listed.enable_expert_parallel or (serve.enable_expert_parallel,), tp * dp)
        for quantization in weights
        for drafting, k in ways
    )


def _experts(asked: tuple[bool, ...], gpus: int) -> tuple[bool, ...]:
    """Whether experts are whole on each GPU; on one GPU they are anyway, so that is asked once."""
    return asked if gpus > 1 else asked[:1]


def _ways(experiment: Experiment) -> Iterator[tuple[Drafting | None, int]]:
    """Plain decoding, then every drafter with every K; without a list, what `serve:` says."""
    yield None, 0
    plan = experiment.plan or Plan()
    drafting = plan.candidates.drafting
    own = experiment.serve.speculative_config
    if not drafting and own is not None and own.num_speculative_tokens:
        drafting = (Drafting(speculative_config=own),)
    for way in drafting:
        config = way.speculative_config
        assert config is not None, "the rules ask for a drafter"
        for k in way.num_speculative_tokens or (config.num_speculative_tokens or 1,):
            yield way, k


def _candidate(
    experiment: Experiment, plan: Plan, serve: Serve, drafting: Drafting | None, k: int
) -> Candidate:
    speculative: SpeculativeConfig | None = None
    acceptance: Process | dict[str, Process] | None = None
    if drafting is not None and drafting.speculative_config is not None:
        speculative = drafting.speculative_config.model_copy(update={"num_speculative_tokens": k})
        acceptance = drafting.acceptance or experiment.acceptance
    config = filled(
        experiment.model_copy(
            update={
                "serve": serve.model_copy(update={"speculative_config": speculative}),
                "acceptance": acceptance,
                "sweep": Sweep(),
            }
        )
    )
    name = gpu_name(serve.gpu)
    tp = serve.tensor_parallel_size
    refusal = _refusal(config)
    drafter = config.serve.speculative_config
    each = tp * serve.data_parallel_size * serve.pipeline_parallel_size
    limits = [count // each for count in (plan.max_gpus, plan.gpus_available.get(name)) if count is not None]
    if not refusal and limits and min(limits) < 1 + plan.spare_replicas:
        refusal = (
            f"more GPUs than the plan allows: {each} a replica, {1 + plan.spare_replicas} replicas at least"
        )
    return Candidate(
        gpu=name,
        tensor_parallel_size=tp,
        quantization=serve.quantization,
        method=str(drafter.method) if drafter else "none",
        drafter=_drafter_name(drafter),
        k=k,
        price_per_hour_usd=_price(plan, serve, name),
        config=config,
        refusal=refusal,
        most_replicas=min(limits) - plan.spare_replicas if limits else None,
        data_parallel_size=serve.data_parallel_size,
        expert_parallel=serve.enable_expert_parallel,
        pipeline_parallel_size=serve.pipeline_parallel_size,
    )


def _drafter_name(speculative: SpeculativeConfig | None) -> str:
    named = speculative.model if speculative else None
    return named if isinstance(named, str) else str(named.get("name", "inline")) if named else ""


def _price(plan: Plan, serve: Serve, name: str) -> float:
    """Returns dollars an hour of one GPU: the plan's, else the catalogue's."""
    price = plan.prices_per_hour_usd.get(name) or lookups.accelerator(serve.gpu).price_per_hour_usd
    assert price is not None, "the rules ask for prices"
    return price


def _refusal(config: Experiment) -> str:
    """Returns the first thing that keeps an engine from starting, in a line; "" if it would start."""
    conflict = next(iter(conflicts(config)), None)
    if conflict is None:
        return ""
    said = conflict.message.splitlines()[0]
    return said.partition(". Use more GPUs")[0].rstrip(".")
