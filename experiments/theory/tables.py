"""`specfleet theory`: what drafting can gain in closed form, before anything is simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults
from specfleet.experiments.words.table import Column, table_text
from specfleet.hardware.model import DrafterSpec, ModelSpec
from specfleet.sim.speculation.theory import (
    best_k,
    draft_rate,
    expected_tokens,
    needed_conditional,
    needed_draft_rate,
    round_cost,
    wall_time_speedup,
)

ALPHAS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DRAFTS = (1, 2, 3, 4, 5, 6, 7, 8)
MOST_DRAFTS = 64
"""Largest K considered for the best one."""

TARGET = "meta-llama/Llama-3.3-70B-Instruct"
HEAD = "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"
DRAFT_MODEL = "meta-llama/Llama-3.2-1B-Instruct"
HELD_TOKENS = 100_000
"""Tokens of context for which the KV cache of the drafters is compared."""

BOTH_RIGHT = (
    "Both are right: 1 + K r counts accepted over drafted, whatever the traffic; (1 - a^(K+1))/(1 - a) asks "
    "each draft once those before it passed; a rejection voids later drafts, so one drafter has r below a."
)


@dataclass(frozen=True)
class Theory:
    """What is asked of the closed forms.

    Args:
        alphas: conditional acceptances.
        drafts: values of K.
        cost_ratio: c, one draft pass over one plain step.
        overhead: o, what verification adds to a plain step, as a share of it.
        target_speedup: S for which acceptance is solved, or None.

    Raises:
        InputFaults: naming each option that is out of range.
    """

    alphas: tuple[float, ...] = ALPHAS
    drafts: tuple[int, ...] = DRAFTS
    cost_ratio: float = 0.05
    overhead: float = 0.0
    target_speedup: float | None = None

    def __post_init__(self) -> None:
        if faults := list(self._faults()):
            raise InputFaults(faults)

    def _faults(self) -> Iterator[Fault]:
        target = self.target_speedup
        checks = (
            ("--alpha", all(0.0 <= a <= 1.0 for a in self.alphas), "must lie in [0, 1]"),
            ("--k", all(1 <= k <= MOST_DRAFTS for k in self.drafts), f"must lie in 1 to {MOST_DRAFTS}"),
            ("--cost-ratio", _at_least(self.cost_ratio, 0.0), "must be a number from 0"),
            ("--overhead", _at_least(self.overhead, 0.0), "must be a number from 0"),
            ("--target-speedup", target is None or _at_least(target, 1e-9), "must be positive"),
        )
        for option, fine, message in checks:
            if not fine:
                yield Fault(COMMAND_LINE, 0, option, message)

    def cost(self, k: int) -> float:
        """Returns plain steps that a round of `k` drafts takes."""
        return round_cost(k, self.cost_ratio, self.overhead)

    def speedup(self, alpha: float, k: int) -> float:
        """Returns how much faster tokens come than without drafting."""
        return wall_time_speedup(alpha, k, self.cost_ratio, self.overhead)

    def best(self, alpha: float) -> int:
        """Returns the K that is fastest; 0 where not drafting is."""
        return best_k(alpha, self.cost_ratio, self.overhead, MOST_DRAFTS)


def _at_least(value: float, least: float) -> bool:
    return math.isfinite(value) and value >= least


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


def theory_command(
    alphas: Sequence[float] = (),
    drafts: Sequence[int] = (),
    cost_ratio: float = 0.05,
    overhead: float = 0.0,
    target_speedup: float | None = None,
    figure: Path | None = None,
) -> int:
    """Prints the tables and, where asked, draws the figure; returns the exit code.

    Args:
        alphas, drafts: rows and columns of the tables; empty takes `ALPHAS` and `DRAFTS`.
        cost_ratio, overhead, target_speedup: see `Theory`.
        figure: PNG or SVG to write.

    Raises:
        InputFaults: for options out of range.
    """
    asked = Theory(
        tuple(sorted(set(alphas))) or ALPHAS,
        tuple(sorted(set(drafts))) or DRAFTS,
        cost_ratio,
        overhead,
        target_speedup,
    )
    print(theory_text(asked))
    if figure is not None:
        from specfleet.experiments.theory.figures import draw_theory

        draw_theory(asked, figure)
        print(f"\nfigure: {figure}")
    return 0
