"""A tiny n-gram language model: explicit next-token distributions to prove speculation on.

The target is a trigram, the draft a more heavily smoothed bigram of the same text, so the draft is
right often, not always, and surest where the text is. Both may be read at a temperature.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class NGram:
    """Next-token probabilities by the last `order - 1` tokens.

    Args:
        table: shape `(vocabulary ** (order - 1), vocabulary)`, rows that sum to 1; the row of a context is
            its tokens read as digits, the oldest first.

    Raises:
        ValueError: if the rows are no distributions, or their number no power of the vocabulary.
    """

    def __init__(self, table: F64) -> None:
        rows, self.vocabulary = table.shape
        self.order = 1
        while self.vocabulary ** (self.order - 1) < rows:
            self.order += 1
        if self.vocabulary ** (self.order - 1) != rows:
            raise ValueError(f"{rows} rows are no power of a vocabulary of {self.vocabulary} tokens")
        if (table < 0.0).any() or not np.allclose(table.sum(axis=1), 1.0):
            raise ValueError("each row of the table must be a distribution: no entry below 0, sum 1")
        self.table = table

    @staticmethod
    def fit(text: I64, vocabulary: int, order: int, smoothing: float) -> NGram:
        """Counts a text.

        Args:
            text: token ids, shape `(n,)`.
            vocabulary: number of different tokens.
            order: tokens of an n-gram, at least 1.
            smoothing: pseudo-counts, spread as the model one token shorter predicts (below the unigram:
                evenly), that join the counts of each context; Dirichlet smoothing, MacKay and Peto 1995.
        """
        shorter = np.full((1, vocabulary), 1.0 / vocabulary)
        for context in range(order):
            counts = np.zeros((vocabulary**context, vocabulary))
            np.add.at(counts, (_digits(text, context, vocabulary), text[context:]), 1.0)
            prior = np.tile(shorter, (counts.shape[0] // shorter.shape[0], 1))
            shorter = (counts + smoothing * prior) / (counts.sum(axis=1, keepdims=True) + smoothing)
        return NGram(shorter)

    def at(self, temperature: float) -> NGram:
        """Returns the model at a temperature: p^(1/T), normalised; 0 is the likeliest token, surely."""
        if temperature == 0.0:
            return NGram(np.eye(self.vocabulary)[self.table.argmax(axis=1)])
        with np.errstate(divide="ignore"):
            logits = np.log(self.table) / temperature
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return NGram(weights / weights.sum(axis=1, keepdims=True))

    def rows(self, contexts: Sequence[Sequence[int]]) -> F64:
        """Returns next-token probabilities, shape `(len(contexts), vocabulary)`.

        Each context has at least `order - 1` tokens.
        """
        places = []
        for context in contexts:
            place = 0
            for token in context[len(context) - self.order + 1 :]:
                place = place * self.vocabulary + token
            places.append(place)
        return self.table.take(places, axis=0)


def _digits(text: I64, context: int, vocabulary: int) -> I64:
    """Returns the row number of each run of `context` tokens that has a successor, shape `(n - context,)`."""
    places = np.zeros(len(text) - context, dtype=np.int64)
    for shift in range(context):
        places = places * vocabulary + text[shift : len(text) - context + shift]
    return places


def zipf_text(vocabulary: int, tokens: int, seed: int) -> I64:
    """Returns a random text, shape `(tokens,)`, of Zipf-like successors.

    The successors of a token follow Zipf's law with exponent 2 in an order of their own; the token before
    it shifts their log weights by a logistic variable of scale 0.8. So a bigram knows much, not all.
    """
    rng = np.random.default_rng(seed)
    ranks = np.argsort(np.argsort(rng.random((vocabulary, vocabulary)), axis=1), axis=1)
    chance = rng.random((vocabulary, vocabulary, vocabulary))
    logits = -2.0 * np.log(1.0 + ranks) + 0.8 * np.log(chance / (1.0 - chance))
    weights = np.exp(logits)
    cumulated = np.cumsum(weights / weights.sum(axis=2, keepdims=True), axis=2)
    text = [0, 0]
    for draw in rng.random(tokens - 2).tolist():
        successors = cumulated[text[-2], text[-1]]
        text.append(min(int(np.searchsorted(successors, draw, side="right")), vocabulary - 1))
    return np.array(text, dtype=np.int64)


def tiny_pair(vocabulary: int = 32, tokens: int = 20_000, seed: int = 0) -> tuple[NGram, NGram]:
    """Returns a target (trigram, 0.2 pseudo-counts) and a draft (bigram, 20 pseudo-counts) of one text."""
    text = zipf_text(vocabulary, tokens, seed)
    return NGram.fit(text, vocabulary, 3, 0.2), NGram.fit(text, vocabulary, 2, 20.0)
