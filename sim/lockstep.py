"""Data-parallel ranks that share experts: engines whose steps begin and end together.

Each rank schedules for itself, with requests and a KV pool of its own. A step of the group begins when that
of every rank has ended; ranks without work run a dummy batch, and all pad to the tokens of the largest, since
the experts take everybody's tokens at once (vLLM's `coordinate_batch_across_dp`, SGLang's DP attention). So a
step lasts as long as the slowest rank needs at the padded size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf

from specfleet.hardware.stepcost import StepCost, StepShape
from specfleet.sim.clients import Answer
from specfleet.sim.environment import Environment
from specfleet.sim.replica import Replica
from specfleet.sim.stepped import EngineServer


def padding(tokens: int, passes: int) -> StepShape:
    """The shape of a step that has tokens and nothing else: what a dummy batch, or padding, is priced by."""
    return StepShape(tokens, 0, 0, 0, 0, 0, 0, 0, passes)


def group_seconds(cost: StepCost, shapes: Sequence[StepShape]) -> float:
    """Seconds of a step in which ranks hold `shapes`: the slowest rank, each padded to the most tokens.

    A rank takes its own price and what its padding adds, `price(most tokens) - price(own tokens)` of steps
    with tokens alone (layers, experts, links; neither attention nor LM head nor host).
    """
    most = max(shape.tokens for shape in shapes)
    slowest = 0.0
    for shape in shapes:
        own = cost.seconds(shape)
        if shape.tokens < most:
            more = cost.seconds(padding(most, shape.draft_passes))
            own += more - cost.seconds(padding(shape.tokens, shape.draft_passes))
        slowest = max(slowest, own)
    return slowest


class LockstepGroup:
    """Ranks that step together, as one server.

    Args:
        servers: a rank each.
        cost: prices a step of a rank.
    """

    def __init__(self, servers: Sequence[EngineServer], cost: StepCost) -> None:
        self.servers = servers
        self.cost = cost
        self.rank = 0
        self._ends = -inf

    def submit(self, row: int, now: float) -> None:
        """Puts a request into the inbox of the rank that `rank` names."""
        self.servers[self.rank].submit(row, now)

    def advance(self, now: float, until: float) -> float:
        """Takes the turn that is due at `now`; in the middle of a step newcomers wait for its end."""
        if now < self._ends:
            return self._ends
        for server in self.servers:
            server.settle(now)
        for server in self.servers:
            server.fill(now)
        flights = [flight for server in self.servers if (flight := server.engine.flight) is not None]
        if not flights:
            return inf
        shapes = [flight.shape for flight in flights if flight.shape is not None]
        longest = max(flight.end_s for flight in flights)  # a second target pass is in it
        self._ends = max(longest, now + group_seconds(self.cost, shapes))
        for flight in flights:
            flight.end_s = self._ends
        return self._ends

    def answers(self) -> Iterator[Answer]:
        """Yields who ended at the last turn, rank by rank."""
        for server in self.servers:
            yield from server.answers()


class Rank:
    """One rank of a group, as a router sees a replica.

    Args:
        replica: the group on the cluster's clock.
        group: the group.
        number: of the rank in it.
    """

    def __init__(self, replica: Replica, group: LockstepGroup, number: int) -> None:
        self._replica, self._group, self._number = replica, group, number

    def submit(self, row: int, now: float) -> None:
        """Takes a request at `now`."""
        self._group.rank = self._number
        self._replica.submit(row, now)


def ranks_of(
    env: Environment,
    servers: Sequence[EngineServer],
    cost: StepCost,
    lockstep: int,
    answered: Callable[[Answer], None],
) -> list[Rank]:
    """The ranks of all groups of `lockstep` successive servers, for a router."""
    ranks: list[Rank] = []
    for first in range(0, len(servers), lockstep):
        group = LockstepGroup(servers[first : first + lockstep], cost)
        replica = Replica(env, group, answered)
        ranks += [Rank(replica, group, number) for number in range(lockstep)]
    return ranks
