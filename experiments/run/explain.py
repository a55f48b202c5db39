"""`specfleet explain`: where one decoding step's time goes, with and without drafts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from specfleet.experiments.load.config import load
from specfleet.experiments.load.rules.acceptance import predicted
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import acceptance_specs, placement
from specfleet.experiments.point.built import priced
from specfleet.experiments.schema.blocks.acceptance import processes
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.pools import pool_experiments
from specfleet.hardware.costmodels import COST_MODELS
from specfleet.hardware.cudagraph import padded
from specfleet.hardware.pipeline.cost import PipelineCost
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import TERMS, StepShape
from specfleet.sim.speculation.acceptance import AcceptanceSpec, survival_table
from specfleet.sim.speculation.depth import Predicted
from specfleet.sim.statistics.interval import CONFIDENCE, Interval
from specfleet.sim.statistics.verdict import LEAST_GAIN, Verdict, verdict

C_Q_RANGE = (0.0, 0.15, 1.0)
"""Cost of one more query token in decode attention: a kernel that reads KV once; one before query packing;
one that reads KV once a query. No table of measured kernels has it for grouped-query attention."""

MEANING = {
    "weights": "streaming weights from HBM",
    "kv": "reading the KV cache",
    "compute": "arithmetic beyond the streaming",
    "communication": "all-reduces between GPUs",
    "launch": "fixed latency of kernels",
    "host": "engine loop on the CPU",
    "drafter": "proposing the next drafts",
}


@dataclass(frozen=True)
class PricedStep:
    """One priced step.

    Attributes:
        k: drafts a sequence.
        shape: its totals.
        terms_ms: milliseconds by term, in `TERMS` order.
        graph: tokens of the CUDA graph it is padded to; None when no graph is that large.
    """

    k: int
    shape: StepShape
    terms_ms: dict[str, float]
    graph: int | None

    @property
    def total_ms(self) -> float:
        """The sum of the terms in printed order."""
        total = 0.0
        for name in TERMS:
            total += self.terms_ms[name]
        return total

    @property
    def bound_by(self) -> str:
        """The largest term."""
        return max(TERMS, key=lambda name: self.terms_ms[name])


USUAL_BATCH = 64


def decode_shape(batch: int, context: int, k: int, passes: int) -> StepShape:
    """Returns the totals of `batch` sequences with `context` cached tokens each, verifying `k` drafts."""
    tokens = batch * (1 + k)
    kv = batch * (context + 1 + k)
    return StepShape(tokens, batch, 0, tokens, batch * k, kv, kv, 0, passes)


def with_drafts(place: Placement, k: int) -> Placement:
    """Returns the placement with `k` drafts a round; 0 unloads the drafter."""
    one_more = k - place.num_speculative_tokens in (0, 1)
    tree = place.draft_pass_tokens if one_more else ()
    return dataclasses.replace(
        place,
        num_speculative_tokens=k,
        draft_pass_tokens=tree,
        draft_tiers=(),
        drafter=place.drafter if k else None,
    )


def passes_of(place: Placement) -> int:
    """Returns drafter forwards a round."""
    if place.drafter is None or not place.drafter.on_gpu:
        return 0
    if place.drafter.parallel_drafting or place.drafter.method == "medusa":
        return 1
    return len(place.draft_pass_tokens) or place.num_speculative_tokens


def price(place: Placement, cost_model: str, batch: int, context: int) -> PricedStep:
    """Prices one step of a placement."""
    k = place.num_speculative_tokens
    cost = priced(COST_MODELS[cost_model], place)
    shape = decode_shape(batch, context, k, passes_of(place))
    columns = {name: np.array([value], dtype=np.int64) for name, value in shape._asdict().items()}
    terms = {name: float(1e3 * value[0]) for name, value in cost.terms(columns).items()}
    sizes = place.uniform_capture_sizes.get(1 + k, place.capture_sizes)
    graph = padded(shape.tokens, sizes) if sizes and shape.tokens <= sizes[-1] else None
    return PricedStep(k, shape, terms, graph)


@dataclass(frozen=True)
class Explanation:
    """One step explained.

    Attributes:
        place: what it runs on, with drafts.
        cost_model: how it is priced.
        batch, context: sequences and cached tokens each.
        plain, drafting: the step without and with drafts (None for a plain experiment).
        one_more_draft_ms, one_more_sequence_ms: marginal costs at this point.
        c_q_ms: the KV term of the drafting step at each value of `C_Q_RANGE`.
        acceptance_length: tokens a round by the file's acceptance, of the class that accepts least; None
            without drafts, or where it is not given for so many.
        predicted: that length with its interval, where it was measured at another K.
        stages_ms, sends_ms: the step, drafts included, on each stage of a pipeline, and between them.
        least_gain: what a ratio must exceed 1 by to count.
    """

    place: Placement
    cost_model: str
    batch: int
    context: int
    plain: PricedStep
    drafting: PricedStep | None
    one_more_draft_ms: float | None
    one_more_sequence_ms: float
    c_q_ms: tuple[float, ...]
    acceptance_length: float | None = None
    predicted: Predicted | None = None
    stages_ms: tuple[float, ...] = ()
    sends_ms: tuple[float, ...] = ()
    least_gain: float = LEAST_GAIN

    @property
    def gain(self) -> Interval | None:
        """Throughput with drafts over that without, of this step alone: exact, as nothing is drawn."""
        if self.drafting is None or self.acceptance_length is None:
            return None
        ratio = self.acceptance_length * self.plain.total_ms / self.drafting.total_ms
        return Interval(ratio, ratio, ratio, CONFIDENCE, inf, inf, inf)

    @property
    def verdict(self) -> Verdict | None:
        """Whether drafts pay in this step at the file's acceptance; None where nothing is drafted."""
        return None if self.gain is None else verdict(self.gain, self.least_gain)


def explain(
    config: Experiment, batch: int | None, context: int, k: int | None, least_gain: float = LEAST_GAIN
) -> Explanation:
    """Explains a decoding step of a point.

    Args:
        config: a validated point.
        batch: sequences decoding; None is `USUAL_BATCH`, or as many as a step holds.
        context: cached tokens of each.
        k: drafts a round; None takes the point's own.
        least_gain: what a ratio must exceed 1 by to count.

    Raises:
        ValueError: when k drafts are asked of a point without a drafter, or the batch exceeds a limit.
    """
    place, model = placement(config.serve), config.serve.cost_model
    chosen = place.num_speculative_tokens if k is None else k
    if chosen and place.drafter is None:
        raise ValueError(f"--k {chosen} needs a drafter; the file has no speculative_config")
    room = min(place.max_num_seqs, place.max_num_batched_tokens // (2 + chosen))
    if batch is None:
        batch = max(min(USUAL_BATCH, room - 1), 1)
    if batch + 1 > room:
        raise ValueError(
            f"--batch {batch} is too large: with one more sequence, or one more draft each, at most "
            f"{room - 1} of {1 + chosen} tokens fit a step (max_num_seqs {place.max_num_seqs:,}, "
            f"max_num_batched_tokens {place.max_num_batched_tokens:,})"
        )
    base = price(with_drafts(place, 0), model, batch, context)
    here = with_drafts(place, chosen)
    step = price(here, model, batch, context) if chosen else None
    after = price(here, model, batch + 1, context)
    more = price(with_drafts(place, chosen + 1), model, batch, context) if place.drafter is not None else None
    spread = tuple(
        price(dataclasses.replace(here, c_q=c_q), model, batch, context).terms_ms["kv"] for c_q in C_Q_RANGE
    )
    now = step or base
    length, law = _length(config, chosen, context)
    stages_ms, sends_ms = on_stages(here, now.shape)
    return Explanation(
        place=here,
        cost_model=model,
        batch=batch,
        context=context,
        plain=base,
        drafting=step,
        one_more_draft_ms=more.total_ms - now.total_ms if more else None,
        one_more_sequence_ms=after.total_ms - now.total_ms,
        c_q_ms=spread if chosen else (),
        acceptance_length=length,
        predicted=law,
        stages_ms=stages_ms,
        sends_ms=sends_ms,
        least_gain=least_gain,
    )


def on_stages(place: Placement, shape: StepShape) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns milliseconds of a step on each stage and between them; both empty for one stage."""
    if place.pipeline_parallel_size == 1:
        return (), ()
    stages, sends = PipelineCost(place).stage_seconds(shape)
    return tuple(1e3 * seconds for seconds in stages), tuple(1e3 * seconds for seconds in sends)


def pooled_length(spec: AcceptanceSpec, k: int, context: int) -> float:
    """Returns tokens a round at K drafts over all rounds, as engines log it.

    Requests that accept less have more rounds: of outputs alike it is the harmonic mean over requests.

    Args:
        spec: what was measured.
        k: drafts a round.
        context: tokens of a prompt, for acceptance that depends on it.
    """
    survival = survival_table(spec, k)
    if spec.context_multiplier:
        tokens, factors = np.array(spec.context_multiplier).T
        factor = np.interp(np.log(context), np.log(np.maximum(tokens, 1.0)), factors)
        survival = np.minimum(survival * factor ** np.arange(1, k + 1), 1.0)
    return float(1.0 / np.mean(1.0 / (1.0 + survival.sum(axis=1))))


def _length(config: Experiment, k: int, context: int) -> tuple[float | None, Predicted | None]:
    """Tokens a round by the file's acceptance at K drafts, and the interval where another K was measured.

    None where it does not say for so many.
    """
    speculative = config.serve.speculative_config
    if not k or speculative is None:
        return None, None
    if config.serve.draft_tree is None:
        drafting = speculative.model_copy(update={"num_speculative_tokens": k})
        serve = config.serve.model_copy(update={"speculative_config": drafting})
        config = config.model_copy(update={"serve": serve})
    try:
        lengths = {name: pooled_length(spec, k, context) for name, spec in acceptance_specs(config).items()}
    except ValueError:
        return None, None
    if not lengths:
        return None, None
    least = min(lengths, key=lengths.__getitem__)
    stated = speculative.rejection_sample_method == "synthetic"
    process = None if stated else processes(config.acceptance).get(least)
    law = predicted(process, config) if process is not None else None
    return lengths[least], None if law is None else law.length


def explain_file(
    file: Path, overrides: Sequence[str], batch: int | None, context: int, k: int | None
) -> Explanation:
    """Explains a step of the first pool of `explain_pools`; arguments and errors as there."""
    return next(iter(explain_pools(file, overrides, batch, context, k).values()))


def explain_pools(
    file: Path, overrides: Sequence[str], batch: int | None, context: int, k: int | None
) -> dict[str, Explanation]:
    """Explains a step of the first point of an experiment that drafts, or of its first point.

    Returns:
        An explanation a pool, by name; one, under "", where all replicas are alike. K is of the pools that
        have a drafter.

    Raises:
        InputFaults: with everything that is wrong with the file.
        ValueError: for a batch or K that the engine does not take.
    """
    experiment = load(file, overrides).experiment
    points = [pool_experiments(point.config) for point in expand(experiment)]
    drafting = [pools for pools in points if any(map(_drafts, pools.values()))]
    least_gain = experiment.report.least_gain
    chosen = (drafting or points)[0]
    return {
        name: explain(config, batch, context, k if "" in chosen or _drafts(config) else None, least_gain)
        for name, config in chosen.items()
    }


def _drafts(config: Experiment) -> bool:
    """Whether a point has a drafter."""
    return config.serve.speculative_config is not None
