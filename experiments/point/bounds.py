"""What one replica can do at most, in closed form from the price of a step: prunes a plan's search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from specfleet.experiments.point.built import build
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.plan import Slo
from specfleet.experiments.schema.blocks.serve import SpeculativeConfig
from specfleet.hardware.pipeline.cost import PipelineCost, SlowestStage
from specfleet.hardware.stepcost import StepCost, StepShape
from specfleet.sim.config import EngineConfig
from specfleet.sim.speculation.acceptance import AcceptanceSpec, survival_table
from specfleet.workloads.requests import RequestTable

F64 = npt.NDArray[np.float64]

SLACK = 1.15
"""Factor on the bound, which takes means of lengths and acceptance: no simulated replica may beat it."""

BATCHES = 96
"""Batch sizes looked at."""


@dataclass(frozen=True)
class MeanLengths:
    """Means of the requests that a bound needs, tokens.

    Attributes:
        prompt, output: of a request.
        context: cached tokens of a decoding request, longer outputs counted for longer.
        long_prompt: 90th percentile.
    """

    prompt: float
    output: float
    context: float
    long_prompt: float

    @classmethod
    def of(cls, table: RequestTable, output_factor: float = 1.0) -> MeanLengths:
        """Returns those of a table; of turns of sessions what is new in a prompt, for no cache finds more."""
        prompt, output = table.prompt_tokens.astype(float), output_factor * table.output_tokens.astype(float)
        context = float(((prompt + output / 2) * output).sum() / output.sum())
        new = table.new_tokens.astype(float)
        return cls(float(new.mean()), float(output.mean()), context, float(np.percentile(new, 90.0)))


@dataclass(frozen=True)
class Bound:
    """What one replica can do at most.

    Attributes:
        rate: requests/s; 0 if the SLO cannot be met at any load.
        batch: requests decoding at that rate.
        limit: what sets it.
        prompt_share: of the time of a token, what other requests' prompts take.
    """

    rate: float
    batch: float
    limit: str
    prompt_share: float = 0.0


def bound(config: Experiment, lengths: MeanLengths, acceptance_factor: float = 1.0) -> Bound:
    """Returns the bound of one engine.

    With B requests decoding, a step takes T(B) and a request needs (output - 1) / L of them at L tokens a
    round; while it decodes, B prompts pass through. So a token takes `T(B) / L + B P(B) / (output - 1)`
    seconds, P(B) what a prompt adds, and `B / ((output - 1) x that)` requests/s are served. B ends at the
    TPOT limit, the KV cache, or max_num_seqs. A limit on a percentile is taken as one on the mean. Where all
    answers have one token nobody decodes and TPOT limits nothing: prompts take all of the time. Ranks that
    share experts serve as many times as much, if they never wait for each other. A pipeline that is full ends
    a batch whenever its slowest stage has run one, and a token takes all stages one after another. Of classes
    that accept differently the one that accepts most counts, of a policy that may choose it the best K.
    """
    drafter = config.serve.speculative_config
    if drafter is None or not (config.serve.draft_policy or drafter.num_speculative_tokens_per_batch_size):
        return _at_fixed_drafts(config, lengths, acceptance_factor)
    found = [_at_fixed_drafts(each, lengths, acceptance_factor) for each in _choices(config, drafter)]
    return max(found, key=lambda bound: bound.rate)


def prompts_bound(config: Experiment, lengths: MeanLengths) -> float:
    """Returns the requests/s whose prompts one replica that does nothing else can compute at most.

    0 where a long prompt alone takes longer than the limit on TTFT. Prompts of a step share its weights.
    """
    built = build(config)
    assert config.slo is not None, "the rules ask for an SLO"
    cost, engine = built.scenario.cost, built.scenario.engine
    ttft = _limit_s(config.slo, "ttft")
    if ttft is not None and _prompt_seconds(cost, engine, lengths.long_prompt) > ttft:
        return 0.0
    return _prompts_alone(cost, engine, lengths.prompt, "").rate


def _choices(config: Experiment, drafter: SpeculativeConfig) -> Iterator[Experiment]:
    """The same engine with every K that a policy may choose, at all times; a tree whole or not at all."""
    most, serve = drafter.num_speculative_tokens or 0, config.serve
    for k in (0, most) if serve.draft_tree is not None else range(most + 1):
        update: dict[str, object] = {
            "num_speculative_tokens": k,
            "num_speculative_tokens_per_batch_size": None,
        }
        speculative = drafter.model_copy(update=update) if k else None
        changed: dict[str, object] = {"draft_policy": None, "speculative_config": speculative}
        if not k:
            changed["draft_tree"] = None
        yield config.model_copy(update={"serve": serve.model_copy(update=changed)})


def _at_fixed_drafts(config: Experiment, lengths: MeanLengths, acceptance_factor: float) -> Bound:
    """The bound of an engine whose K never changes."""
    built = build(config)
    assert config.slo is not None, "the rules ask for an SLO"
    cost, engine = built.scenario.cost, built.scenario.engine
    length = max(
        (mean_length(spec, engine.num_speculative_tokens) for spec in built.scenario.acceptance.values()),
        default=1.0,
    )
    length = 1.0 + (length - 1.0) * min(acceptance_factor, 1.0)
    alone = _prompt_seconds(cost, engine, lengths.long_prompt)
    ttft = _limit_s(config.slo, "ttft")
    if ttft is not None and alone > ttft:
        return Bound(
            0.0, 0.0, f"TTFT: a prompt of {lengths.long_prompt:.0f} tokens alone takes {alone:.2f} s"
        )
    ranks, stages = config.serve.data_parallel_size, config.serve.pipeline_parallel_size
    one = most(*of_one_batch(cost, engine), lengths, length, _limit_s(config.slo, "tpot"), cost)
    return replace(one, rate=ranks * one.rate, batch=ranks * stages * one.batch)


def of_one_batch(cost: StepCost, engine: EngineConfig) -> tuple[StepCost, EngineConfig]:
    """Returns prices and limits of a batch of a full pipeline; those of the engine where it has one stage.

    As many batches as stages share seats and KV blocks, and one ends whenever the slowest stage has run one.
    """
    if not isinstance(cost, PipelineCost):
        return cost, engine
    stages = engine.pipeline_parallel_size
    seats, blocks = max(engine.max_num_seqs // stages, 1), max(engine.num_gpu_blocks // stages, 2)
    return SlowestStage(cost), replace(engine, max_num_seqs=seats, num_gpu_blocks=blocks)


def mean_length(spec: AcceptanceSpec, k: int) -> float:
    """Returns tokens a round at K drafts, the mean over requests; of prompts at which it accepts most."""
    if not k:
        return 1.0
    survival = survival_table(spec, k).mean(axis=0)
    most = max((factor for _, factor in spec.context_multiplier), default=1.0)
    most *= max((factor for _, factor in spec.turn_multiplier), default=1.0)
    return 1.0 + float(np.minimum(survival * most ** np.arange(1, k + 1), 1.0).sum())


def _limit_s(slo: Slo, latency: str) -> float | None:
    """Returns the loosest limit on a latency that its mean must keep, seconds."""
    limit = slo.request_limits_ms.get(latency)
    return None if limit is None else limit / 1e3


def most(
    cost: StepCost,
    engine: EngineConfig,
    lengths: MeanLengths,
    length: float,
    tpot_s: float | None,
    whole: StepCost | None = None,
) -> Bound:
    """Returns the bound of an engine that gets `length` tokens a round, within a limit on TPOT or none.

    `whole` prices what a token waits for, where that is more than `cost`: all stages of a pipeline.
    """
    q = 1 + engine.num_speculative_tokens
    caps = {
        "KV cache": engine.usable_tokens / lengths.context,
        "max_num_seqs": float(engine.max_num_seqs),
        "token budget": (engine.max_num_batched_tokens - 1) / q,
    }
    cap = max(int(min(caps.values())), 1)
    decoded = lengths.output - 1.0
    if decoded <= 0.0:
        return _prompts_alone(cost, engine, lengths.prompt, min(caps, key=lambda name: caps[name]))
    batch = np.unique(np.geomspace(1, cap, BATCHES).astype(np.int64)).astype(np.float64)
    if decoded < 1.0:  # most answers have one token: less than one request decodes at a time
        batch = np.concatenate([np.geomspace(0.01 * decoded, 1.0, BATCHES, endpoint=False), batch])
    step, prompt = _steps(cost, engine, lengths, np.maximum(batch, 1.0).astype(np.int64))
    token = step / length + batch * prompt / decoded
    rate = batch / (token * decoded)
    waits = token
    if whole is not None and whole is not cost:
        held = np.maximum(batch, 1.0).astype(np.int64)
        waits = np.maximum(token, _steps(whole, engine, lengths, held)[0] / length)
    allowed = waits <= tpot_s if tpot_s is not None else np.ones(len(batch), dtype=bool)
    if not allowed.any():
        return Bound(0.0, 0.0, f"TPOT: one request alone takes {1e3 * waits[0]:.1f} ms a token")
    chosen = int(np.argmax(np.where(allowed, rate, 0.0)))
    limit = "TPOT" if not allowed.all() else min(caps, key=lambda name: caps[name])
    share = float(batch[chosen] * prompt[chosen]) / decoded / float(token[chosen])
    return Bound(SLACK * float(rate[chosen]), float(batch[chosen]), limit, share)


def _prompts_alone(cost: StepCost, engine: EngineConfig, prompt: float, limit: str) -> Bound:
    """Returns the bound where nobody decodes: as many prompts a step as go in, at the number that is best."""
    tokens = max(round(prompt), 1)
    together = min(
        engine.max_num_batched_tokens // tokens, engine.max_num_seqs, engine.usable_tokens // tokens
    )
    fastest = _prompt_seconds(cost, engine, prompt)
    for n in np.unique(np.geomspace(1, max(together, 1), BATCHES).astype(int)).tolist():
        if n * tokens <= engine.max_num_batched_tokens:
            one = StepShape(n * tokens, 0, n, n, 0, 0, 0, n * tokens * (tokens + 1) // 2, 0)
            fastest = min(fastest, cost.seconds(one) / n)
    return Bound(SLACK / fastest, 0.0, limit, 1.0)


def _steps(
    cost: StepCost, engine: EngineConfig, lengths: MeanLengths, batch: npt.NDArray[np.int64]
) -> tuple[F64, F64]:
    """Returns seconds of a step with B decoding requests, and what a mean prompt adds, chunked at best."""
    k = engine.num_speculative_tokens
    passes = engine.speculative.draft_passes if engine.speculative else 0
    decode = _columns(batch, k, lengths.context, passes, np.zeros_like(batch))
    alone = _seconds(cost, decode)
    beside = np.minimum(batch, engine.max_num_seqs - 1)
    without = _columns(beside, k, lengths.context, passes, np.zeros_like(batch))
    room = np.maximum(engine.max_num_batched_tokens - batch * (1 + k), 1)
    best = np.full(len(batch), np.inf)
    for chunk in (np.minimum(room, max(round(lengths.prompt), 1)), room):
        both = _seconds(cost, _columns(beside, k, lengths.context, passes, chunk))
        best = np.minimum(best, (both - _seconds(cost, without)) * lengths.prompt / chunk)
    return alone, best


def _columns(
    batch: npt.NDArray[np.int64], k: int, context: float, passes: int, chunk: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[np.int64]]:
    """Step shapes of B decoding requests and one prompt chunk, none where the chunk is empty."""
    prefill = (chunk > 0).astype(np.int64)
    kv = np.rint(batch * context).astype(np.int64)
    values = {
        "tokens": batch * (1 + k) + chunk,
        "decode_sequences": batch,
        "prefill_sequences": prefill,
        "logit_rows": batch * (1 + k) + prefill,
        "draft_tokens": batch * k,
        "kv_tokens": kv,
        "kv_tokens_in_window": kv,
        "prefill_pairs": chunk * (chunk + 1) // 2,
        "draft_passes": np.full_like(batch, passes),
    }
    return {name: values[name] for name in StepShape._fields}


def _seconds(cost: StepCost, columns: dict[str, npt.NDArray[np.int64]]) -> F64:
    total: F64 = np.sum(list(cost.terms(columns).values()), axis=0)
    return total


def _prompt_seconds(cost: StepCost, engine: EngineConfig, prompt: float) -> float:
    """Returns the time of a prompt with the GPU to itself: its tokens in one step, or in full ones."""
    chunk = min(max(round(prompt), 1), engine.max_num_batched_tokens)
    one = StepShape(chunk, 0, 1, 1, 0, 0, 0, chunk * (chunk + 1) // 2, 0)
    return cost.seconds(one) * max(prompt / chunk, 1.0)
