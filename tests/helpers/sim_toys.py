"""Small worlds for the tests of `sim`: prices simple enough for closed forms, and short ways to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from specfleet.hardware.kernels import Array
from specfleet.hardware.stepcost import TERMS, StepShape
from specfleet.sim.config import (
    NO_CLIENT,
    ClientConfig,
    DeploymentConfig,
    EngineConfig,
    LoadConfig,
    SpeculativeConfig,
)
from specfleet.sim.router import ROUTERS
from specfleet.sim.simulation import RunResult, Scenario, simulate
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.workloads.requests import RequestTable


@dataclass(frozen=True)
class ToyCost:
    """Seconds of a step: a constant, more with a prefill in it, affine in tokens and drafter passes."""

    step_s: float = 0.02
    prefill_s: float = 0.0
    token_s: float = 0.0
    pass_s: float = 0.0

    def seconds(self, shape: StepShape) -> float:
        """Seconds of one step."""
        prefill_s = self.prefill_s if shape.prefill_sequences else 0.0
        return self.step_s + prefill_s + self.token_s * shape.tokens + self.pass_s * shape.draft_passes

    def terms(self, columns: Mapping[str, np.ndarray[tuple[int], np.dtype[np.int64]]]) -> dict[str, Array]:
        """The same for many steps, in one term."""
        shapes = zip(*(columns[name].tolist() for name in StepShape._fields), strict=True)
        return {"weights": np.array([self.seconds(StepShape(*shape)) for shape in shapes])}

    def summary(self) -> str:
        """A toy."""
        return "toy"


ENGINE = EngineConfig(
    max_num_seqs=64, max_num_batched_tokens=4096, num_gpu_blocks=100_001, max_model_len=100_000
)
"""Ample in everything."""


def drafting(
    k: int, method: str = "eagle3", engine: EngineConfig = ENGINE, **speculative: object
) -> EngineConfig:
    """An engine with K drafts a round; without speculation for K = 0."""
    config = SpeculativeConfig(method, k, **speculative) if k else None  # type: ignore[arg-type]
    return replace(engine, speculative=config)


@dataclass(frozen=True)
class World:
    """Requests in front of a toy cluster; lists give a value a request."""

    prompt: Sequence[int]
    output: Sequence[int]
    max_tokens: Sequence[int] | None = None
    arrival_s: Sequence[float] | None = None
    engine: EngineConfig = ENGINE
    cost: ToyCost = field(default_factory=ToyCost)
    acceptance: AcceptanceSpec | None = None
    classes: Mapping[str, AcceptanceSpec] | None = None
    client: ClientConfig = NO_CLIENT
    load: LoadConfig = field(default_factory=LoadConfig)
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)
    prompts: Sequence[Sequence[tuple[int, int]]] | None = None
    """Each prompt as (stream, tokens), if not private."""

    @property
    def segments(self) -> tuple[list[int], list[int], list[int]] | None:
        """The prompts as columns of a request table."""
        if self.prompts is None:
            return None
        pieces = [piece for prompt in self.prompts for piece in prompt]
        offset = np.cumsum([0, *(len(prompt) for prompt in self.prompts)]).tolist()
        return offset, [stream for stream, _ in pieces], [tokens for _, tokens in pieces]

    def run(self, seed: int = 0, engine: str = "auto") -> RunResult:
        """Simulates it; with `classes`, requests are of class `a` and `b` in turn."""
        names, rows = ("a", "b"), range(len(self.prompt))
        table = RequestTable.of(
            self.prompt,
            self.output,
            max_tokens=self.max_tokens,
            arrival_s=self.arrival_s,
            class_id=[row % 2 for row in rows],
            class_names=names,
            segments=self.segments,
        )
        acceptance = self.classes or ({"": self.acceptance} if self.acceptance else {})
        return simulate(self.scenario(acceptance), table, seed, engine)

    def scenario(self, acceptance: Mapping[str, AcceptanceSpec]) -> Scenario:
        """Returns the configuration."""
        return Scenario(self.engine, self.cost, acceptance, self.deployment, self.client, self.load)


SPREAD = AcceptanceSpec(by_position=(0.7, 0.5, 0.4, 0.3, 0.2, 0.15), concentration=10.0)
"""Requests differ; wide enough for every K here."""


@st.composite
def worlds(draw: st.DrawFn, loop: st.SearchStrategy[str] | None = None) -> World:
    """A small fleet, tight or ample, in an open, closed or capped loop."""
    n = draw(st.integers(1, 16))
    kind = draw(st.sampled_from(["open", "closed", "capped"]) if loop is None else loop)
    gaps = draw(st.lists(st.floats(0, 0.2), min_size=n, max_size=n))
    output = draw(st.lists(st.integers(1, 20), min_size=n, max_size=n))
    spare = draw(st.lists(st.sampled_from([0, 0, 5]), min_size=n, max_size=n))
    k = draw(st.sampled_from([0, 0, 1, 3, 6]))
    engine = replace(
        drafting(k, draw(st.sampled_from(["eagle3", "ngram", "draft_model"]))),
        max_num_seqs=draw(st.sampled_from([1, 3, 64])),
        max_num_batched_tokens=draw(st.sampled_from([16, 64, 4096])),
        num_gpu_blocks=draw(st.sampled_from([8, 12, 1000])),
        max_model_len=200,
        enable_prefix_caching=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
    )
    return World(
        draw(st.lists(st.integers(1, 90), min_size=n, max_size=n)),
        output,
        max_tokens=[o + s for o, s in zip(output, spare, strict=True)],
        arrival_s=[0.0] * n if kind == "closed" else np.cumsum(gaps).tolist(),
        engine=engine,
        cost=ToyCost(step_s=0.01, token_s=0.0003, pass_s=0.001),
        acceptance=SPREAD if k else None,
        client=draw(st.sampled_from([ClientConfig(), ClientConfig(chunk_s=0.05), NO_CLIENT])),
        load=LoadConfig(None if kind == "open" else draw(st.integers(1, 6)), draw(st.integers(0, n))),
        deployment=DeploymentConfig(draw(st.integers(1, 3)), draw(st.sampled_from(sorted(ROUTERS)))),
    )


@dataclass(frozen=True)
class SplitCost:
    """A toy price with every term."""

    drafter_s: float = 0.002

    def terms(self, columns: Mapping[str, npt.NDArray[np.int64]]) -> dict[str, npt.NDArray[np.float64]]:
        """Seconds by term for many steps."""
        nothing = np.zeros(len(columns["tokens"]))
        found: dict[str, npt.NDArray[np.float64]] = dict.fromkeys(TERMS, nothing)
        sequences = columns["decode_sequences"] + columns["prefill_sequences"]
        return found | {
            "weights": nothing + 0.01,
            "compute": np.asarray(
                1e-4 * columns["tokens"] + 1e-6 * columns["prefill_pairs"], dtype=np.float64
            ),
            "kv": np.asarray(1e-6 * columns["kv_tokens"], dtype=np.float64),
            "host": np.asarray(1e-3 + 1e-5 * sequences, dtype=np.float64),
            "drafter": np.asarray(self.drafter_s * columns["draft_passes"], dtype=np.float64),
        }

    def seconds(self, shape: StepShape) -> float:
        """Seconds of one step: its terms in order."""
        terms = self.terms({name: np.array([value]) for name, value in shape._asdict().items()})
        return float(sum(float(terms[name][0]) for name in TERMS))

    def summary(self) -> str:
        """A toy."""
        return "toy"
