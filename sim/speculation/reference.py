"""The speculative loop itself, token by token, on small explicit distributions.

The event simulator never sees a token: it draws how many drafts are accepted. Here the drafts are
drawn, verified in one target pass, accepted or replaced, so that three things can be shown and not
assumed: the output has the target's distribution, one round costs one target pass and yields 1 + A
tokens, and the simulator's counters are this loop's.

One rule serves chains and trees (Leviathan et al. 2023; Chen et al. 2023; several candidates: Miao et
al., SpecInfer, 2024). Candidate x, drawn from q, is accepted with probability min(1, p(x) / q(x)); if
not, p becomes the residual max(p - q, 0), normalised, for the next candidate. Where all are rejected,
the recovered token is drawn from the last residual; where a node has no candidates, the bonus token is
drawn from p. A chain is the tree with one candidate a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from specfleet.sim.speculation.trees import Path, TreeSpec

F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]
Residual = Callable[[F64, F64], F64]
"""What a rejection of a draw from q leaves of p."""


class LanguageModel(Protocol):
    """Explicit next-token distributions."""

    def rows(self, contexts: Sequence[Sequence[int]]) -> F64:
        """Returns next-token probabilities after each context, shape `(len(contexts), vocabulary)`."""
        ...


def sample(p: F64, rng: np.random.Generator) -> int:
    """Returns a token drawn from `p`, shape `(vocabulary,)`."""
    cumulated = p.cumsum()
    return int(cumulated.searchsorted(rng.random() * cumulated[-1], side="right"))


def residual(p: F64, q: F64) -> F64:
    """Returns what a rejection of a draw from `q` leaves of `p`: max(p - q, 0), normalised.

    Where q covers all of p nothing is ever rejected, and p itself is returned.
    """
    left = np.maximum(p - q, 0.0)
    total = left.sum()
    return np.asarray(left / total) if total > 0.0 else p


@dataclass(frozen=True, slots=True)
class DraftedToken:
    """A drafted token and the distribution it was drawn from, given the siblings drawn before it."""

    token: int
    q: F64


def greedy(q: F64, count: int, rng: np.random.Generator) -> list[DraftedToken]:
    """Returns the `count` likeliest tokens, each sure: one-hot, as vLLM and SGLang draft by default.

    The first is accepted with probability p(argmax q), the next ones with p of their token.
    """
    tokens = (-q).argsort(kind="stable")[:count]
    one_hot = np.zeros((len(tokens), len(q)))
    one_hot[np.arange(len(tokens)), tokens] = 1.0
    return [DraftedToken(token, row) for token, row in zip(tokens.tolist(), one_hot, strict=True)]


def probabilistic(q: F64, count: int, rng: np.random.Generator) -> list[DraftedToken]:
    """Returns up to `count` tokens drawn from `q` without replacement.

    The first is accepted with probability sum(min(p, q)) = 1 - total variation. Fewer come where q has
    no more tokens.
    """
    token, found = sample(q, rng), []
    while True:
        found.append(DraftedToken(token, q))
        if len(found) == count:
            return found
        q = q.copy()
        q[token] = 0.0
        left = q.sum()
        if left == 0.0:
            return found
        q /= left
        token = sample(q, rng)


DRAFT_SAMPLE_METHODS: dict[str, Callable[[F64, int, np.random.Generator], list[DraftedToken]]] = {
    "greedy": greedy,
    "probabilistic": probabilistic,
}
"""vLLM's names."""


@dataclass(frozen=True, slots=True)
class Draft:
    """One round's tree of drafts for one sequence. Row 0 is the root, the last known token.

    Args:
        candidates: the nodes, rows 1 .. n, parents first.
        parents: row of each node's parent.
    """

    candidates: tuple[DraftedToken, ...]
    parents: tuple[int, ...]

    @property
    def tokens(self) -> list[int]:
        """Drafted tokens, in row order."""
        return [candidate.token for candidate in self.candidates]


def ancestor_mask(parents: Sequence[int]) -> Bool:
    """Returns the attention mask among root and nodes, shape `(n + 1, n + 1)`.

    Entry (i, j) says that row i sees row j: itself and its ancestors. A chain's is triangular.
    """
    mask = np.eye(len(parents) + 1, dtype=np.bool_)
    for row, parent in enumerate(parents, start=1):
        mask[row] |= mask[parent]
    return mask


@lru_cache(maxsize=256)
def _visible(parents: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Returns the rows that each row sees, in order."""
    return tuple(tuple(np.flatnonzero(row).tolist()) for row in ancestor_mask(parents))


class Drafter:
    """Proposes a tree by a draft model.

    Args:
        model: the draft model.
        tree: how many candidates each node gets.
        draft_sample_method: `greedy` or `probabilistic`.

    Raises:
        ValueError: on another method.
    """

    def __init__(self, model: LanguageModel, tree: TreeSpec, draft_sample_method: str = "greedy") -> None:
        if draft_sample_method not in DRAFT_SAMPLE_METHODS:
            known = ", ".join(DRAFT_SAMPLE_METHODS)
            raise ValueError(f"draft_sample_method is {draft_sample_method!r}; known: {known}")
        self.model = model
        self.tree = tree
        self._candidates = DRAFT_SAMPLE_METHODS[draft_sample_method]
        self._children = {
            parent: sum(path[:-1] == parent for path in tree.paths) for parent in [(), *tree.paths]
        }

    def propose(self, context: Sequence[int], rng: np.random.Generator) -> Draft:
        """Returns drafts after `context`. Ranks that the draft model cannot fill are left out."""
        row: dict[Path, int] = {(): 0}
        seen: dict[Path, list[int]] = {(): list(context)}
        found: dict[Path, list[DraftedToken]] = {}
        candidates: list[DraftedToken] = []
        parents: list[int] = []
        for path in self.tree.paths:
            parent = path[:-1]
            if parent not in row:
                continue
            if parent not in found:
                q = self.model.rows([seen[parent]])[0]
                found[parent] = self._candidates(q, self._children[parent], rng)
            if path[-1] < len(found[parent]):
                candidate = found[parent][path[-1]]
                candidates.append(candidate)
                parents.append(row[parent])
                row[path] = len(candidates)
                seen[path] = [*seen[parent], candidate.token]
        return Draft(tuple(candidates), tuple(parents))


def walk(
    draft: Draft, rows: F64, rng: np.random.Generator, recover: Residual = residual
) -> tuple[list[int], int]:
    """Follows the target through one verified tree.

    Args:
        draft: the drafts.
        rows: the target's distribution after the root and each node, shape `(n + 1, vocabulary)`.
        rng: of the acceptances.
        recover: what a rejection leaves of the target's distribution.

    Returns:
        The accepted rows, from the root down, and the recovered or bonus token after them.
    """
    node, path = 0, []
    p = rows[0]
    for row, (candidate, parent) in enumerate(zip(draft.candidates, draft.parents, strict=True), start=1):
        if parent != node:
            continue
        if rng.random() * candidate.q[candidate.token] < p[candidate.token]:
            node = row
            path.append(row)
            p = rows[row]
        else:
            p = recover(p, candidate.q)
    return path, sample(p, rng)


class Generation:
    """One sequence: its tokens, and the tokens whose KV is written, slot by slot.

    Between rounds KV lacks exactly the last token, whose KV the next target pass writes.

    Args:
        prompt: at least one token; all but the last are prefilled.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens = list(prompt)
        self.kv = self.tokens[:-1]
        self.prompt_tokens = len(prompt)
        self.accepted: list[int] = []
        self.moved_tokens = 0

    def write(self, draft: Draft) -> list[list[int]]:
        """Writes root and drafts past the end, and returns what each row sees."""
        first = len(self.kv)
        assert first == len(self.tokens) - 1
        self.kv += [self.tokens[-1], *draft.tokens]
        before, rows = self.kv[:first], self.kv[first:]
        return [before + [rows[row] for row in seen] for seen in _visible(draft.parents)]

    def keep(self, path: Sequence[int], token: int) -> None:
        """Keeps root and accepted rows, moved together, cuts the rest off, and takes the new token.

        Args:
            path: the accepted rows.
            token: recovered or bonus.
        """
        first = len(self.tokens) - 1
        kept = [self.kv[first + row] for row in (0, *path)]
        self.moved_tokens += sum(row != place for place, row in enumerate(path, start=1))
        self.kv[first:] = kept
        self.tokens += [*kept[1:], token]
        self.accepted.append(len(path))
        assert self.kv[first:] == self.tokens[first:-1] and len(self.kv) == len(self.tokens) - 1

    @property
    def output(self) -> list[int]:
        """Tokens generated."""
        return self.tokens[self.prompt_tokens :]


class SpeculativeLoop:
    """Draft, verify in one target pass, accept: for a batch of sequences, round by round.

    Args:
        target: the model whose distribution the output has.
        drafter: proposes.
        rng: of drafts and acceptances.
        recover: as in `walk`; another than `residual` is wrong on purpose.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafter: Drafter,
        rng: np.random.Generator,
        recover: Residual = residual,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.rng = rng
        self.recover = recover
        self.target_passes = self.written_slots = 0

    def step(self, batch: Sequence[Generation]) -> None:
        """Runs one round: each sequence accepts A of its drafts and gains A + 1 tokens."""
        drafts = [self.drafter.propose(generation.tokens, self.rng) for generation in batch]
        contexts = [generation.write(draft) for generation, draft in zip(batch, drafts, strict=True)]
        rows = self.target.rows([context for seen in contexts for context in seen])
        self.target_passes += 1
        self.written_slots += sum(len(seen) for seen in contexts)
        first = 0
        for generation, draft, seen in zip(batch, drafts, contexts, strict=True):
            path, token = walk(draft, rows[first : first + len(seen)], self.rng, self.recover)
            generation.keep(path, token)
            first += len(seen)


def decode(target: LanguageModel, prompt: Sequence[int], tokens: int, rng: np.random.Generator) -> list[int]:
    """Returns `tokens` tokens sampled one by one from the target: what speculation must not change."""
    known = list(prompt)
    for _ in range(tokens):
        known.append(sample(target.rows([known])[0], rng))
    return known[len(prompt) :]


@dataclass(frozen=True, slots=True)
class Counters:
    """What an engine would report of some rounds.

    Args:
        rounds_by_accepted: rounds that accepted 0, 1, ... drafts.
    """

    rounds_by_accepted: tuple[int, ...]

    @staticmethod
    def of(batch: Sequence[Generation], depth: int) -> Counters:
        """Counts the rounds of a batch with at most `depth` accepted drafts each."""
        accepted = [count for generation in batch for count in generation.accepted]
        return Counters(tuple(np.bincount(accepted, minlength=depth + 1).tolist()))

    @property
    def by_position(self) -> tuple[float, ...]:
        """P(at least 1, 2, ... drafts accepted)."""
        counts = np.array(self.rounds_by_accepted[::-1])
        return tuple((np.cumsum(counts)[::-1][1:] / counts.sum()).tolist())

    @property
    def conditional_acceptance(self) -> float:
        """P(a draft is accepted | those before it were): accepted / (accepted + rounds with a rejection)."""
        accepted = sum(depth * rounds for depth, rounds in enumerate(self.rounds_by_accepted))
        return accepted / (accepted + sum(self.rounds_by_accepted[:-1]))
