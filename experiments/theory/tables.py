"""What `specfleet theory` prints: the closed forms as tables."""

from __future__ import annotations

from collections.abc import Callable

from specfleet.experiments.schema import lookups
from specfleet.experiments.theory.question import MOST_DRAFTS, Theory
from specfleet.experiments.words.acceptance import BOTH_RIGHT
from specfleet.experiments.words.table import Column, table_text
from specfleet.hardware.model import DrafterSpec, ModelSpec
from specfleet.sim.speculation.theory import (
    draft_rate,
    expected_tokens,
    needed_conditional,
    needed_draft_rate,
)

TARGET = "meta-llama/Llama-3.3-70B-Instruct"
HEAD = "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"
DRAFT_MODEL = "meta-llama/Llama-3.2-1B-Instruct"
HELD_TOKENS = 100_000
"""Tokens of context for which the KV cache of the drafters is compared."""


def theory_text(asked: Theory) -> str:
    """Returns all tables, each under a line that says what it is."""
    assumed = (
        f"A draft pass costs c = {asked.cost_ratio:g} plain steps, verification adds o = {asked.overhead:g}: "
        "a round of K drafts costs 1 + K c + o plain steps."
    )
    parts = [
        "Expected tokens per verification, (1 - a^(K+1))/(1 - a), by conditional acceptance a and K:",
        _grid(asked, lambda alpha, k: f"{expected_tokens(alpha, k):.2f}"),
        "The same drafter as engines log it, accepted over drafted:",
        _grid(asked, lambda alpha, k: f"{draft_rate(alpha, k):.3f}"),
        assumed,
        "Speedup of the time per token, tokens over cost (Leviathan et al. 2023: "
        "(1 - a^(K+1)) / ((1 - a)(K c + 1)) with o = 0), and the best K:",
        _speedups(asked),
        "Break-even: the acceptance from which a round pays, under each definition:",
        _needed(asked, 1.0),
        BOTH_RIGHT,
    ]
    if asked.target_speedup is not None:
        parts += [
            f"Acceptance for a speedup of {asked.target_speedup:g}, under each definition:",
            _needed(asked, asked.target_speedup),
        ]
    return "\n\n".join([*parts, memory_text()])


def _grid(asked: Theory, cell: Callable[[float, int], str]) -> str:
    rows = [[f"{alpha:g}", *(cell(alpha, k) for k in asked.drafts)] for alpha in asked.alphas]
    return table_text(["a", *(f"K = {k}" for k in asked.drafts)], rows)


def _speedups(asked: Theory) -> str:
    rows = []
    for alpha in asked.alphas:
        best = asked.best(alpha)
        shown = f"{best}" if best < MOST_DRAFTS else f"{MOST_DRAFTS} or more"
        cells = [f"{asked.speedup(alpha, k):.2f}" for k in asked.drafts]
        rows.append([f"{alpha:g}", *cells, shown, f"{asked.speedup(alpha, best):.2f}"])
    return table_text(["a", *(f"K = {k}" for k in asked.drafts), "best K", "speedup"], rows)


def _needed(asked: Theory, speedup: float) -> str:
    rows = []
    for k in asked.drafts:
        cost = asked.cost(k)
        conditional, rate = needed_conditional(cost, k, speedup), needed_draft_rate(cost, k, speedup)
        cells = ["never", "never"] if conditional is None else [f"{conditional:.3f}", f"{max(rate, 0.0):.3f}"]
        rows.append([f"{k}", f"{speedup * cost:.3f}", *cells])
    return table_text(["K", "tokens a round", "a (conditional)", "r (accepted/drafted)"], rows)


def memory_text() -> str:
    """Returns what an EAGLE-3 head and a 1B draft model take beside a 70B target, on one GPU."""
    target = lookups.model(TARGET)
    head, small = lookups.drafter(HEAD), lookups.drafter(DRAFT_MODEL)
    kinds = ((head, "EAGLE-3 head"), (small, "1B draft model"))
    rows = [_memory_row(drafter, kind, target) for drafter, kind in kinds]
    columns = (
        Column("drafter", left=True),
        Column("kind", left=True),
        Column("weights GB", "{:.2f}"),
        Column("KV bytes/token", "{:,}"),
        Column("of the target's", "{:.1%}"),
        Column(f"KV of {HELD_TOKENS:,} tokens GB", "{:.2f}"),
    )
    kv = target.kv_bytes_per_token("auto", 1)
    return "\n\n".join(
        [
            f"Memory beside {TARGET} on one GPU, BF16 (its own KV: {kv:,} bytes a token):",
            table_text(columns, rows),
        ]
    )


def _memory_row(drafter: DrafterSpec, kind: str, target: ModelSpec) -> list[object]:
    kv = drafter.kv_bytes_per_token("auto", 1)
    share = kv / target.kv_bytes_per_token("auto", 1)
    return [drafter.name, kind, drafter.weight_bytes(1) / 1e9, kv, share, kv * HELD_TOKENS / 1e9]
