"""Whether speculation leaves the target's distribution as it is, as measured on tokens: the figures.

`reference.py` is the loop; here its outputs are counted and held against the target. A loop with a wrong
residual stands beside the right one, because a test that finds nothing wrong with either shows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from specfleet.sim.speculation.ngram_lm import NGram, tiny_pair, zipf_text
from specfleet.sim.speculation.reference import (
    DRAFT_SAMPLE_METHODS,
    Counters,
    Drafter,
    Generation,
    Residual,
    SpeculativeLoop,
    decode,
    residual,
)
from specfleet.sim.speculation.trees import TreeSpec, chain

F64 = npt.NDArray[np.float64]
METHODS = tuple(DRAFT_SAMPLE_METHODS)
TREES = {"chain": chain(4), "tree": TreeSpec(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))}
TEMPERATURES = (0.0, 0.7, 1.0, 1.5)
VOCABULARY = 4
"""Tokens of the models whose output is counted: few, so that each context comes often."""

SURE = 0.999
"""Confidence with which an output is said to differ."""

LEAST_EXPECTED = 5.0
"""Expected counts from which the chi-square distribution describes the statistic (Cochran 1954)."""


def broken_residual(p: F64, q: F64) -> F64:
    """Returns `p` itself: a recovered token that may be the one just rejected. Wrong, and easily written."""
    return p


RESIDUALS: dict[str, Residual] = {"right": residual, "broken": broken_residual}


def random_model(order: int, seed: int, vocabulary: int = VOCABULARY) -> NGram:
    """Returns a model whose rows are half even, half uniform on the simplex."""
    rows = -np.log(np.random.default_rng(seed).random((vocabulary ** (order - 1), vocabulary)))
    return NGram(0.5 * rows / rows.sum(axis=1, keepdims=True) + 0.5 / vocabulary)


def random_pair() -> tuple[NGram, NGram]:
    """Returns a target that looks back two tokens and a draft that looks back one."""
    return random_model(order=3, seed=1), random_model(order=2, seed=2)


def loop_of(
    target: NGram,
    draft: NGram,
    tree: TreeSpec,
    method: str = "greedy",
    seed: int = 0,
    recover: Residual = residual,
) -> SpeculativeLoop:
    """Returns a loop with luck of its own."""
    return SpeculativeLoop(target, Drafter(draft, tree, method), np.random.default_rng(seed), recover)


def generated(loop: SpeculativeLoop, prompts: Sequence[Sequence[int]], rounds: int) -> list[Generation]:
    """Returns a batch after some rounds."""
    batch = [Generation(prompt) for prompt in prompts]
    for _ in range(rounds):
        loop.step(batch)
    return batch


def successors(sequences: Sequence[Sequence[int]], back: int = 3, vocabulary: int = VOCABULARY) -> F64:
    """Counts (`back` tokens, the next), shape `(vocabulary ** back, vocabulary)`.

    The target of `random_pair` looks back two; counts after three would show what it should not see.
    """
    counts = np.zeros((vocabulary,) * (back + 1))
    for tokens in sequences:
        np.add.at(counts, tuple(tokens[at : len(tokens) - back + at] for at in range(back + 1)), 1)
    return counts.reshape(vocabulary**back, vocabulary)


def chi_square(counts: F64, p: F64, confidence: float = 0.95) -> tuple[float, float]:
    """Returns the statistic of counts against rows of probabilities, and its critical value.

    Raises:
        ValueError: some expected count is too small for the statistic to mean anything.
    """
    expected = counts.sum(axis=1, keepdims=True) * p
    if not expected.min() > LEAST_EXPECTED:
        raise ValueError(f"{expected.min():.3g} expected in a cell; the test needs {LEAST_EXPECTED:g}")
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return statistic, chi_square_limit(confidence, counts.shape[0] * (counts.shape[1] - 1))


def chi_square_limit(confidence: float, degrees: int) -> float:
    """Returns the quantile of chi-square by Wilson and Hilferty (1931): within 0.2 % from 30 degrees on."""
    spread = 2.0 / (9.0 * degrees)
    return degrees * (1.0 - spread + NormalDist().inv_cdf(confidence) * math.sqrt(spread)) ** 3


def total_variation(a: F64, b: F64) -> float:
    """Returns half the summed difference of two distributions: 0 alike, 1 without a common token."""
    return float(np.abs(a - b).sum() / 2)


@dataclass(frozen=True, slots=True)
class Output:
    """Generated tokens held against the target's distribution.

    Attributes:
        tokens: counted.
        statistic, limit: chi-square over (two tokens, the next), and what chance passes once in 1,000.
        variation: total variation between what was counted and what the target gives after the same two
            tokens. Sampling one by one has some too: chance.
    """

    tokens: int
    statistic: float
    limit: float
    variation: float

    @property
    def exact(self) -> bool:
        """Whether chance explains the difference."""
        return self.statistic < self.limit

    @staticmethod
    def of(sequences: Sequence[Sequence[int]], target: NGram) -> Output:
        """Counts what followed as many tokens as the target looks back, the prompt's included."""
        counts = successors(sequences, target.order - 1, target.vocabulary)
        expected = counts.sum(axis=1, keepdims=True) * target.table
        total = float(counts.sum())
        return Output(
            int(total),
            *chi_square(counts, target.table, SURE),
            total_variation(counts / total, expected / total),
        )


def output_of(tree: str, method: str, recover: Residual = residual, rounds: int = 50_000) -> Output:
    """Returns the output of a loop on `random_pair`: sequences of 20 rounds each."""
    target, draft = random_pair()
    loop = loop_of(target, draft, TREES[tree], method, recover=recover)
    batch = generated(loop, [[0, 0]] * (rounds // 20), 20)
    return Output.of([generation.tokens for generation in batch], target)


def direct_output(tokens: int) -> Output:
    """Returns the output of sampling the target of `random_pair` token by token: what chance alone does."""
    target, _ = random_pair()
    rng = np.random.default_rng(7)
    return Output.of([[0, 0, *decode(target, [0, 0], 50, rng)] for _ in range(tokens // 50)], target)


@dataclass(frozen=True, slots=True)
class Rollback:
    """What rounds did to the KV slots of their sequences.

    Attributes:
        rounds: verified.
        written: slots written, the last known token's and the drafts'.
        kept: of them, those whose token stayed.
        moved: kept slots that lay off the first branch and were moved up.
        whole: after every round a sequence's KV was that of its tokens but the last, slot by slot.
    """

    rounds: int
    written: int
    kept: int
    moved: int
    whole: bool


def rollback_of(tree: str, method: str = "greedy", rounds: int = 2_000) -> Rollback:
    """Returns what `rounds` rounds of 20 sequences on `random_pair` wrote, kept and moved."""
    target, draft = random_pair()
    loop = loop_of(target, draft, TREES[tree], method)
    batch, whole = [Generation([0, 0]) for _ in range(20)], True
    for _ in range(rounds // 20):
        loop.step(batch)
        whole = whole and all(generation.kv == generation.tokens[:-1] for generation in batch)
    done = sum(len(generation.accepted) for generation in batch)
    kept = sum(len(generation.kv) - 1 for generation in batch)
    moved = sum(generation.moved_tokens for generation in batch)
    return Rollback(done, loop.written_slots, kept, moved, whole)


@lru_cache
def text_pair() -> tuple[NGram, NGram, list[list[int]]]:
    """Returns a tiny target and draft of one text, and 2,000 of its places to begin at, two tokens each."""
    text = zipf_text(32, 20_000, 0)
    return *tiny_pair(), [text[start : start + 2].tolist() for start in range(0, 16_000, 8)]


def accepted_at(temperature: float, method: str, tree: TreeSpec, rounds: int = 4) -> Counters:
    """Returns what the pair of `text_pair` accepts in some rounds after each of its beginnings."""
    *pair, prompts = text_pair()
    target, draft = (model.at(temperature) for model in pair)
    return Counters.of(generated(loop_of(target, draft, tree, method), prompts, rounds), tree.depth)


def overlap(target: NGram, draft: NGram, method: str) -> float:
    """Returns the closed form of the first draft's acceptance, over the beginnings of `text_pair`.

    sum(min(p, q)) for drafts that are sampled, p(argmax q) for the likeliest token.
    """
    *_, prompts = text_pair()
    p, q = target.rows(prompts), draft.rows(prompts)
    if method == "greedy":
        return float(p[np.arange(len(p)), q.argmax(axis=1)].mean())
    return float(np.minimum(p, q).sum(axis=1).mean())
