"""Acceptance processes that are not shipped: what one must offer, and those that are registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from specfleet.sim.speculation.luck import ROUND, bits32, key

_SAMPLED_REQUESTS, _SAMPLED_ROUNDS, _SAMPLED_PROMPT = 256, 64, 1024


class DraftProcess(Protocol):
    """What becomes of a drafter's drafts. One object serves one class of traffic in one run.

    It is made with keyword arguments: `k` (drafts a round), `seed` (of the run's luck), and its parameters.
    """

    def accepted(
        self, request_id: int, rounds: int, prompt_tokens: int, temperature: float
    ) -> Sequence[int] | npt.NDArray[np.integer]:
        """Returns the drafts accepted in each of a request's first `rounds` verifications, 0 to K.

        The same for the same request whenever it is asked, and for fewer rounds the beginning of it: so that
        nothing else, such as the batch or the router, changes a request's luck. `draws` is made for that.
        """
        ...


PROCESSES: dict[str, Callable[..., DraftProcess]] = {}
"""Registered processes by name."""


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """A registered process with its parameters.

    Args:
        name: a key of `PROCESSES`.
        parameters: keyword arguments besides `k` and `seed`.
    """

    name: str
    parameters: Mapping[str, object] = field(default_factory=dict, hash=False)

    def made(self, k: int, seed: int) -> DraftProcess:
        """Returns the process for `k` drafts a round."""
        return PROCESSES[self.name](k=k, seed=seed, **self.parameters)


def draws(seed: int, request_id: int, rounds: int) -> npt.NDArray[np.float64]:
    """Returns a number in [0, 1) for each of a request's first rounds, always the same ones.

    They are those that the shipped processes draw against, so two processes can be compared on the same luck.
    """
    return np.asarray(bits32(key(seed, request_id, ROUND), rounds) / (1 << 32))


def checked(own: OwnProcess, found: object, k: int, rounds: int) -> npt.NDArray[np.uint8]:
    """Returns what a process answered for `rounds` rounds of `k` drafts.

    Raises:
        ValueError: it is no list of that many whole numbers from 0 to `k`.
    """
    counts = np.asarray(found)
    whole = counts.dtype.kind in "iub" and counts.ndim == 1 and len(counts) >= rounds
    if not whole or (len(counts) and not (counts.min() >= 0 and counts.max() <= k)):
        raise ValueError(
            f"acceptance process {own.name} must answer {rounds} rounds with as many whole numbers, 0 to {k}"
        )
    return counts[:rounds].astype(np.uint8)


def sampled_survival(own: OwnProcess, k: int) -> npt.NDArray[np.float64]:
    """Returns the share of rounds that accept draft 1, 2, .. K, over a sample of requests."""
    process = own.made(k, seed=0)
    rows = [
        checked(own, process.accepted(request, _SAMPLED_ROUNDS, _SAMPLED_PROMPT, 0.0), k, _SAMPLED_ROUNDS)
        for request in range(_SAMPLED_REQUESTS)
    ]
    return np.asarray([(np.concatenate(rows) > place).mean() for place in range(k)])
