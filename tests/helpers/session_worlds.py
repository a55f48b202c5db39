"""Random sessions in front of small engines, and a table of sessions from what is said of each turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from sim_toys import World
from timeline_worlds import TICK, worlds

from specfleet.sim.scenario import RunResult, Scenario
from specfleet.sim.simulation import simulate
from specfleet.sim.speculation.spec import AcceptanceSpec
from specfleet.workloads.requests import RequestTable

SYSTEM = 1 << 40
"""Streams of system prompts lie below those of sessions."""


@dataclass(frozen=True)
class Turn:
    """One turn: its prompt as (stream, tokens), its output, and the pause before it."""

    prompt: tuple[tuple[int, int], ...]
    output: int
    think_s: float = 0.0
    output_stream: int | None = None


def table_of(sessions: Sequence[tuple[float, Sequence[Turn]]], spare: int = 0) -> RequestTable:
    """Returns the requests of sessions, each (start in seconds, turns), in order of their starts."""
    turns = [turn for _, session in sessions for turn in session]
    pieces = [piece for turn in turns for piece in turn.prompt]
    output = [turn.output for turn in turns]
    table = RequestTable.of(
        [sum(tokens for _, tokens in turn.prompt) for turn in turns],
        output,
        max_tokens=[tokens + spare * (row % 3) for row, tokens in enumerate(output)],
        arrival_s=[start for start, session in sessions for _ in session],
        class_id=[row % 2 for row in range(len(turns))],
        class_names=("a", "b"),
        segments=(
            np.cumsum([0, *(len(turn.prompt) for turn in turns)]),
            [stream for stream, _ in pieces],
            [tokens for _, tokens in pieces],
        ),
    )
    streams = [turn.prompt[-1][0] if turn.output_stream is None else turn.output_stream for turn in turns]
    table = replace(
        table,
        session_id=np.repeat(np.arange(len(sessions)), [len(session) for _, session in sessions]),
        turn=np.concatenate([np.arange(len(session)) for _, session in sessions]),
        think_s=np.array([turn.think_s for turn in turns]),
        output_stream=np.array(streams),
    )
    table.validate()
    return table


@dataclass(frozen=True)
class Sessions:
    """Sessions in front of a cluster."""

    world: World
    table: RequestTable

    @property
    def scenario(self) -> Scenario:
        """The configuration."""
        return self.world.scenario(self.world.classes or {})

    def run(self, seed: int = 0, engine: str = "auto") -> RunResult:
        """Simulates it."""
        return simulate(self.scenario, self.table, seed, engine)


@st.composite
def sessions(
    draw: st.DrawFn, replicas: int = 1, caching: bool = True, chosen: bool = False, short: bool = False
) -> Sessions:
    """A few sessions of a few turns: contexts that grow, that begin anew, and answers that are not kept.

    Args:
        draw: hypothesis's.
        replicas: most of them.
        caching: prefixes are kept.
        chosen: a policy chooses K: the pool holds everybody at once.
        short: KV runs short.
    """
    world = draw(worlds(("closed", "capped", "open"), replicas))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size, tied = world.engine.block_size, draw(st.booleans())
    starts = np.cumsum(rng.exponential(draw(st.sampled_from([0.0, 20.0, 300.0])), rng.integers(1, 9))) * TICK
    system = int(rng.choice([0, size, 2 * size + 3]))
    made = []
    for number, start in enumerate(starts.tolist()):
        stream, context, turns = -1 - number * 100, 0, []
        for turn in range(rng.integers(1, 6)):
            kind = rng.random()
            if turn and kind < 0.15:
                stream, context = stream - 1, 0  # trimmed: what is kept stands somewhere else now
            context += int(rng.integers(1, 3 * size + 4))
            head = ((-SYSTEM - number % 2, system),) if system else ()
            kept = kind < 0.85
            pause = rng.exponential(50.0) if rng.random() < 0.7 else 0.0
            output = int(rng.integers(1, draw(st.sampled_from([3, 20, 60])) + 1))
            turns.append(
                Turn(
                    (*head, (stream, context)),
                    output,
                    TICK * (np.floor(pause) if tied else pause),
                    None if kept else -SYSTEM - 1000 - number,
                )
            )
            context += output
        made.append((start, turns))
    table = table_of(made, draw(st.sampled_from([0, 0, 1, 4])))
    seqs = draw(st.sampled_from([1, 2, 3, 6]))
    largest = int((table.prompt_tokens + table.max_tokens).max()) + 24
    room = 0.7 if short else draw(st.sampled_from([1.0, 1.2, 3.0, 10.0]))
    engine = replace(
        world.engine,
        enable_prefix_caching=caching,
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.sampled_from([24, 60, 4096])),
        num_gpu_blocks=int(largest * seqs * room) // size + 6 + seqs * chosen,
        max_model_len=4096,
    )
    if engine.speculative is not None:
        k = max(engine.speculative.num_speculative_tokens, 3 if chosen else 1)
        engine = replace(
            engine,
            speculative=replace(engine.speculative, num_speculative_tokens=k, drafter_max_model_len=None),
        )
    classes = world.classes
    if classes and draw(st.booleans()):
        falling = AcceptanceSpec(conditional_acceptance=0.8, turn_multiplier=((0.0, 1.0), (3.0, 0.2)))
        classes = {**classes, "a": falling}
    return Sessions(replace(world, engine=engine, classes=classes), table)
