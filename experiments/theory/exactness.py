"""What `specfleet theory --exactness` prints: that speculation leaves the target's output as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specfleet.experiments.words.table import Column, table_text
from specfleet.sim.speculation.exactness import (
    METHODS,
    RESIDUALS,
    TEMPERATURES,
    TREES,
    Output,
    Rollback,
    accepted_at,
    direct_output,
    output_of,
    overlap,
    rollback_of,
    text_pair,
)
from specfleet.sim.speculation.reference import Counters, Drafter, ancestor_mask

ROUNDS = 8_000
"""Verifications counted for each row of the first table: all its cells expect more than 5 tokens."""

DRAFT_TREE = "tree"
HOT = TEMPERATURES[-1]


@dataclass(frozen=True)
class Exactness:
    """What was measured.

    Attributes:
        direct: output of sampling token by token.
        outputs: output by (tree, method, residual).
        rollbacks: what happened to KV slots, by tree.
        accepted: what a chain of 4 accepted, by (method, temperature).
        forms: the first draft's acceptance in closed form, by (method, temperature).
    """

    direct: Output
    outputs: Mapping[tuple[str, str, str], Output]
    rollbacks: Mapping[str, Rollback]
    accepted: Mapping[tuple[str, float], Counters]
    forms: Mapping[tuple[str, float], float]

    @property
    def holds(self) -> bool:
        """Whether all that is right is exact, and all that is broken was found."""
        outputs = all(output.exact == (key[2] == "right") for key, output in self.outputs.items())
        return outputs and self.direct.exact and all(kv.whole for kv in self.rollbacks.values())


def measure_exactness(rounds: int = ROUNDS) -> Exactness:
    """Runs the loops.

    Args:
        rounds: verifications of each loop whose output is counted.
    """
    outputs = {
        (tree, method, name): output_of(tree, method, recover, rounds)
        for tree in TREES
        for method in METHODS
        for name, recover in RESIDUALS.items()
    }
    target, draft, _ = text_pair()
    at = [(method, temperature) for method in METHODS for temperature in TEMPERATURES]
    return Exactness(
        direct_output(min(output.tokens for output in outputs.values())),
        outputs,
        {tree: rollback_of(tree) for tree in TREES},
        {(method, t): accepted_at(t, method, TREES["chain"], 1) for method, t in at},
        {(method, t): overlap(target.at(t), draft.at(t), method) for method, t in at},
    )


def exactness_text(found: Exactness) -> str:
    """Returns all tables, each under a line that says what it is."""
    right = [output for key, output in found.outputs.items() if key[2] == "right"]
    broken = [output for key, output in found.outputs.items() if key[2] != "right"]
    lines = [
        f"With the right residual {sum(output.exact for output in right)} of {len(right)} outputs have the "
        f"target's distribution; with the broken one {sum(output.exact for output in broken)} of "
        f"{len(broken)}.",
        "Tokens of small models whose distributions are known, counted against the target's: chi-square over "
        "(two tokens, the next) with its critical value, which chance alone passes one time in 1,000, and "
        "total variation, of which chance alone gives as much as in the first row:",
        _outputs(found),
        "The right residual of a rejected draw from q is max(p - q, 0), normalised; the broken one is p, so "
        "that the token just rejected may come back.",
        "Tree mask: a node sees the prompt, itself and its ancestors (1.2 is the second candidate after the "
        "first):",
        _mask(),
        "Rollback by logical length: a round writes KV for its last known token and all drafts; what is "
        "rejected is cut off by length, accepted nodes off the first branch move up, and the KV left is that "
        "of all tokens but the last:",
        _rollbacks(found),
        "Acceptance against temperature (a trigram target, a bigram draft, chain of 4): the first draft; its "
        "closed form, sum of min(p, q) where drafts are sampled (probabilistic) and p(argmax q) where they "
        "are the likeliest tokens (greedy); any draft after accepted ones; tokens a round:",
        _temperatures(found),
        _collapse(found),
    ]
    return "\n\n".join(lines)


def _outputs(found: Exactness) -> str:
    rows = [["none", "", "", *_figures(found.direct)]]
    rows += [[*key, *_figures(output)] for key, output in found.outputs.items()]
    names = ("drafts", "method", "residual")
    columns = (
        *(Column(name, left=True) for name in names),
        Column("tokens", "{:,}"),
        Column("chi-square", "{:,.0f}"),
        Column("limit", "{:.0f}"),
        Column("total variation", "{:.3f}"),
        Column("output", left=True),
    )
    return table_text(columns, rows)


def _figures(output: Output) -> list[object]:
    said = "exact" if output.exact else "NOT exact"
    return [output.tokens, output.statistic, output.limit, output.variation, said]


def _mask() -> str:
    """The mask of the tree whose output stands above."""
    _, draft, prompts = text_pair()
    tree = TREES[DRAFT_TREE]
    parents = Drafter(draft, tree).propose(prompts[0], np.random.default_rng(0)).parents
    names = ["root", *(".".join(str(rank + 1) for rank in path) for path in tree.paths)]
    marks = [["x" if seen else "." for seen in row] for row in ancestor_mask(parents)]
    return table_text(["sees", *names], [[name, *row] for name, row in zip(names, marks, strict=True)])


def _rollbacks(found: Exactness) -> str:
    rows = [
        [tree, kv.rounds, kv.written, kv.kept, kv.written - kv.kept, kv.moved, "yes" if kv.whole else "NO"]
        for tree, kv in found.rollbacks.items()
    ]
    names = ("rounds", "written", "kept", "cut off", "moved")
    columns = (
        Column("drafts", left=True),
        *(Column(name, "{:,}") for name in names),
        Column("KV is that of the tokens", left=True),
    )
    return table_text(columns, rows)


def _temperatures(found: Exactness) -> str:
    rows = [
        [
            method,
            t,
            counters.by_position[0],
            found.forms[method, t],
            counters.conditional_acceptance,
            1 + sum(counters.by_position),
        ]
        for (method, t), counters in found.accepted.items()
    ]
    columns = (
        Column("method", left=True),
        Column("T", "{:g}"),
        Column("first draft", "{:.3f}"),
        Column("closed form", "{:.3f}"),
        Column("conditional", "{:.3f}"),
        Column("acceptance length", "{:.2f}"),
    )
    return table_text(columns, rows)


def _collapse(found: Exactness) -> str:
    """One sentence of what heat does."""
    greedy, sampled = (
        [found.accepted[method, t].conditional_acceptance for t in (TEMPERATURES[0], HOT)]
        for method in ("greedy", "probabilistic")
    )
    return (
        f"Collapse: from T = 0 to T = {HOT:g} the conditional acceptance of the likeliest tokens falls from "
        f"{greedy[0]:.2f} to {greedy[1]:.2f}, that of sampled drafts to {sampled[1]:.2f}."
    )
