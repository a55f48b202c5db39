"""A process at a K that it was not measured at, by the law of `sim.speculation.depth`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from specfleet.experiments.point.acceptance_specs import written_out
from specfleet.experiments.schema.blocks.acceptance import Process
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.sim.speculation.depth import CountedAt, Depth, Predicted, at_k, known
from specfleet.sim.speculation.families import FAMILIES, DrafterFamily
from specfleet.sim.speculation.theory import length_from_draft_rate


@dataclass(frozen=True)
class Beyond:
    """A process at a K that it was not measured at.

    Args:
        k: drafts a round.
        measured_at_k: of the measurement.
        depth: what the measurement says of every K.
        by_position: predicted at `k`.
    """

    k: int
    measured_at_k: int
    depth: Depth
    by_position: tuple[float, ...]

    @property
    def length(self) -> Predicted:
        """The acceptance length at `k`, with its interval."""
        here, law = 1.0 + sum(self.by_position), self.depth.length(self.k)
        ends = (1.0 + (each - 1.0) * (here - 1.0) / (law.value - 1.0) for each in (law.low, law.high))
        low, high = (min(end, self.k + 1.0) for end in ends)
        return Predicted(here, low, high)

    @property
    def low_factor(self) -> float:
        """The factor on every conditional acceptance that gives the low end of the interval."""
        low, high = 0.0, 1.0
        for _ in range(40):
            factor = (low + high) / 2.0
            reached = 1.0 + sum(step * factor**i for i, step in enumerate(self.by_position, 1))
            low, high = (factor, high) if reached < self.length.low else (low, factor)
        return (low + high) / 2.0

    def reaches(self, length: float) -> float:
        """Returns the chance that the acceptance length at `k` is at least `length`."""
        here, law = 1.0 + sum(self.by_position), self.depth.length(self.k).value
        return self.depth.reaches(self.k, 1.0 + (length - 1.0) * (law - 1.0) / (here - 1.0))


def beyond(given: Process, k: int, method: str | None) -> Beyond | None:
    """Returns a process at K = `k` where it was measured at another; None where there is nothing to predict.

    Args:
        given: a process; a profile is looked up.
        k: drafts a round.
        method: of drafting.
    """
    process = written_out(given)
    seen = _counted(process)
    if seen is None or not k or seen.k == k:
        return None
    if seen.by_position is not None and process.measured_at_k is None and k < seen.k:
        return None  # positions without a K: the first K count
    return _beyond(seen, k, FAMILIES[method or "eagle"])


@lru_cache(maxsize=256)
def _beyond(seen: CountedAt, k: int, family: DrafterFamily) -> Beyond | None:
    depth = known(family, [seen], k)
    steps = seen.by_position or depth.by_position(seen.k)
    predicted = at_k(depth, steps, k)
    return Beyond(k, seen.k, depth, predicted) if sum(predicted) > 0.0 else None


def _counted(process: Process) -> CountedAt | None:
    """What was measured; None of a law that states itself, of recorded requests and of one's own."""
    if process.by_position is not None:
        return CountedAt(len(process.by_position), process.by_position)
    at, length = process.measured_at_k, process.acceptance_length
    if at is None or process.decay != 1.0:
        return None
    if length is None and process.draft_acceptance_rate is not None:
        length = length_from_draft_rate(process.draft_acceptance_rate, at)
    return None if length is None else CountedAt(at, acceptance_length=length)


def at_drafts(given: Process, config: Experiment) -> Process:
    """Returns a process at the K of a point: predicted where it was measured at another, else as it is."""
    speculative = config.serve.speculative_config
    if speculative is None or config.serve.draft_tree is not None:
        return given
    found = beyond(given, speculative.num_speculative_tokens or 0, speculative.method)
    if found is None:
        return given
    update: dict[str, object] = {
        "by_position": found.by_position,
        "acceptance_length": None,
        "draft_acceptance_rate": None,
        "measured_at_k": None,
    }
    return written_out(given).model_copy(update=update)
