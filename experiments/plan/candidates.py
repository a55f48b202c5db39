"""What may be bought: every engine of a plan, its price, and why some cannot be had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from specfleet.experiments.load.defaults import filled
from specfleet.experiments.load.rules.conflicts import conflicts
from specfleet.experiments.load.rules.plan import gpu_name
from specfleet.experiments.load.rules.tree import positions_needed
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.acceptance import Process
from specfleet.experiments.schema.blocks.experiment import Experiment, Sweep
from specfleet.experiments.schema.blocks.plan import Drafting, Plan
from specfleet.experiments.schema.blocks.policy import DraftPolicy
from specfleet.experiments.schema.blocks.serve import Serve, SpeculativeConfig
from specfleet.experiments.schema.blocks.sglang import Sglang
from specfleet.experiments.schema.blocks.tree import DraftTree

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
        build: the engine profile where the plan lists several; else "".
        how: what tells ways to draft apart besides drafter and K, a tree or a policy; "" for chains of K.
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
    build: str = ""
    how: str = ""

    @property
    def id(self) -> str:
        """Names it: `4 x h100-sxm fp8, eagle3 K = 3`."""
        drafting = f"{self.method} K = {self.k}" if self.k else "plain"
        return f"{self.engine}, {drafting}{f' {self.how}' if self.how else ''}"

    @property
    def engine(self) -> str:
        """Names its GPUs and weights: `8 x h200 fp8`, `8 x h200 (DP 4, TP 2, EP) fp8`, `2 x l40s (PP 2)`."""
        apart = (("DP", self.data_parallel_size), ("PP", self.pipeline_parallel_size))
        ways = [f"{name} {count}" for name, count in apart if count > 1]
        ways += [f"TP {self.tensor_parallel_size}"] if ways and self.tensor_parallel_size > 1 else []
        ways += ["EP"] if self.expert_parallel else []
        spread = f" ({', '.join(ways)})" if ways else ""
        return f"{self.gpus} x {self.gpu}{spread} {self.weights}{f' {self.build}' if self.build else ''}"

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.tensor_parallel_size * self.data_parallel_size * self.pipeline_parallel_size

    @property
    def kind(self) -> tuple[str, int, int, int, bool, str | None, str]:
        """What tells engines apart, drafting aside."""
        ways = self.tensor_parallel_size, self.data_parallel_size, self.pipeline_parallel_size
        return self.gpu, *ways, self.expert_parallel, self.quantization, self.build

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
    def drafting(self) -> tuple[str, str, str]:
        """What tells ways to draft apart, K aside."""
        return self.method, self.drafter, self.how

    @property
    def depth(self) -> int:
        """Drafts that follow one another: K of a chain."""
        return positions_needed(self.config.serve)


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
    found = (
        _candidate(
            experiment,
            plan,
            serve.model_copy(
                update={
                    "engine": engine,
                    "gpu": gpu,
                    "tensor_parallel_size": tp,
                    "data_parallel_size": dp,
                    "pipeline_parallel_size": pp,
                    "enable_expert_parallel": ep,
                    "quantization": quantization,
                }
            ),
            way,
        )
        for engine in listed.engine or (serve.engine,)
        for gpu in gpus
        for tp in sizes
        for dp in listed.data_parallel_size or (serve.data_parallel_size,)
        for pp in listed.pipeline_parallel_size or (serve.pipeline_parallel_size,)
        for ep in _experts(listed.enable_expert_parallel or (serve.enable_expert_parallel,), tp * dp)
        for quantization in weights
        for way in ways
    )
    if len(listed.engine) < 2:
        return tuple(found)
    return tuple(replace(one, build=lookups.engine(one.config.serve.engine).name) for one in found)


def _experts(asked: tuple[bool, ...], gpus: int) -> tuple[bool, ...]:
    """Whether experts are whole on each GPU; on one GPU they are anyway, so that is asked once."""
    return asked if gpus > 1 else asked[:1]


@dataclass(frozen=True)
class _Way:
    """One way to draft; all empty for plain decoding.

    Attributes:
        drafting: of the plan.
        k: drafts a round; None for a tree, whose nodes they are.
        tree: in place of a chain.
        policy: that chooses K while running.
        how: in words, what tells it from a chain of K.
    """

    drafting: Drafting | None = None
    k: int | None = None
    tree: DraftTree | None = None
    policy: DraftPolicy | None = None
    how: str = ""


def _ways(experiment: Experiment) -> Iterator[_Way]:
    """Plain decoding, then every drafter with every K and tree; without a list, what `serve:` says."""
    yield _Way()
    plan, serve = experiment.plan or Plan(), experiment.serve
    drafting = plan.candidates.drafting
    own = serve.speculative_config
    if not drafting and own is not None and own.num_speculative_tokens:
        drafting = (Drafting(speculative_config=own),)
    for way in drafting:
        config = way.speculative_config
        assert config is not None, "the rules ask for a drafter"
        chains = way.num_speculative_tokens or (
            () if way.draft_tree else (config.num_speculative_tokens or 1,)
        )
        policies = way.draft_policy or (serve.draft_policy,)
        for policy in policies:
            listed = way.draft_policy and policy is not None
            named = _policy_in_words(policy) if listed and policy is not None else ""
            for k in chains:
                yield _Way(way, k, None, policy, named)
            for tree in way.draft_tree:
                yield _Way(way, None, tree, policy, " ".join(filter(None, [_tree_in_words(tree), named])))


def _policy_in_words(policy: DraftPolicy) -> str:
    """Its name, and the parameters that are not the default."""
    chosen = policy.chosen
    if chosen is None:
        return "policy"
    given = policy.model_dump(exclude_defaults=True)[chosen[0]]
    said = ", ".join(f"{key} {value}" for key, value in given.items()) if isinstance(given, dict) else ""
    return f"{chosen[0]} ({said})" if said else chosen[0]


def _tree_in_words(tree: DraftTree) -> str:
    """What a tree is made from."""
    if tree.shape is not None:
        return f"tree {'x'.join(map(str, tree.shape))}"
    if tree.sglang is not None:
        one = tree.sglang
        return f"tree of {one.steps} steps, top {one.topk}, {one.num_draft_tokens} tokens"
    if tree.optimal is not None:
        return f"best tree of {tree.optimal}"
    return f"tree of {len(tree.paths or ())} paths"


def _candidate(experiment: Experiment, plan: Plan, serve: Serve, way: _Way) -> Candidate:
    speculative: SpeculativeConfig | None = None
    acceptance: Process | dict[str, Process] | None = None
    drafting = way.drafting
    if drafting is not None and drafting.speculative_config is not None:
        speculative = drafting.speculative_config.model_copy(update={"num_speculative_tokens": way.k})
        acceptance = drafting.acceptance or experiment.acceptance
    config = filled(
        experiment.model_copy(
            update={
                "serve": _drafted(serve, speculative, way),
                "acceptance": acceptance,
                "sweep": Sweep(),
            }
        )
    )
    name = gpu_name(serve.gpu)
    tp = serve.tensor_parallel_size
    refusal = _not_simulated(config, way) or _refusal(config)
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
        k=(drafter.num_speculative_tokens or 0) if drafter else 0,
        how=way.how,
        price_per_hour_usd=_price(plan, serve, name),
        config=config,
        refusal=refusal,
        most_replicas=min(limits) - plan.spare_replicas if limits else None,
        data_parallel_size=serve.data_parallel_size,
        expert_parallel=serve.enable_expert_parallel,
        pipeline_parallel_size=serve.pipeline_parallel_size,
    )


def _drafted(serve: Serve, speculative: SpeculativeConfig | None, way: _Way) -> Serve:
    """The engine with a way to draft; what SGLang's command needs of a tree of its own stays beside it."""
    update: dict[str, object] = {"speculative_config": speculative, "draft_tree": way.tree}
    update["draft_policy"] = way.policy if way.drafting is not None else serve.draft_policy
    if way.tree is not None and way.tree.sglang is not None and _is_sglang(serve):
        shape = {
            "speculative_num_steps": way.tree.sglang.steps,
            "speculative_eagle_topk": way.tree.sglang.topk,
        }
        update["sglang"] = (serve.sglang or Sglang()).model_copy(update=shape)
    return serve.model_copy(update=update)


def _is_sglang(serve: Serve) -> bool:
    profile = lookups.found(lambda: lookups.engine(serve.engine))
    return profile is not None and profile.scheduler == "sglang"


def _not_simulated(config: Experiment, way: _Way) -> str:
    """Why a way to draft is no candidate under an engine; "" where it is one."""
    sglang = _is_sglang(config.serve)
    if way.tree is not None and not sglang:
        return f"{config.serve.engine} verifies chains, no trees (engine sglang does)"
    policy = config.serve.draft_policy
    if policy is not None and sglang and not _planned(policy):
        return (
            "this draft_policy under SGLang is stepped, too slow for a search (batch_size and "
            "disable_above_queue are not): sweep serve.draft_policy with run"
        )
    return ""


def _planned(policy: DraftPolicy) -> bool:
    """Whether SGLang's calendar takes a policy: what chooses for a whole batch, and learns nothing."""
    return set(policy.model_dump(exclude_none=True)) <= {"batch_size", "disable_above_queue"}


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
