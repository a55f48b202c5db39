"""Picks a replica for a request that has just arrived. A router sees counts, never the future.

What it sees of a replica is as old as the refresh says (`sim.fleet.views`). What it may be told of requests
is what stands in them: prompt and session, not how long the answer will be.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import inf
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from specfleet.sim.speculation.luck import ROUTE, bits_each, bits_once
from specfleet.workloads.requests import RequestTable

I64 = npt.NDArray[np.int64]


class Candidate(Protocol):
    """What a router may ask a replica."""

    @property
    def outstanding(self) -> int:
        """Requests sent there whose end has not been seen yet."""
        ...


class Weighed(Candidate, Protocol):
    """What a router may ask besides."""

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of the requests outstanding."""
        ...

    @property
    def kv_usage(self) -> float:
        """Share of its KV blocks in use, as the engine reports it."""
        ...


Replicas: TypeAlias = Sequence[Candidate]


class Router(Protocol):
    """Chooses among replicas."""

    def pick(self, request_id: int, replicas: Any) -> int:
        """Returns the index of the replica that gets the request."""
        ...


@runtime_checkable
class Blind(Protocol):
    """A router that asks replicas nothing, so that its choices are known before anything runs."""

    def picks(self, request_ids: I64, replicas: int) -> I64:
        """Returns the replicas of the next requests: what `pick` would say of one after the other."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A router that asks replicas for the number of requests outstanding, and for nothing else."""

    def choose(self, request_id: int, outstanding: Sequence[int]) -> int:
        """Returns the index of the replica that gets the request, by the number outstanding at each."""
        ...


@runtime_checkable
class Told(Protocol):
    """A router that wants to know what stands in requests."""

    def told(self, table: RequestTable) -> None:
        """Gives it the requests; it reads of each, when that comes, prompt, session and class alone."""
        ...


class Looking:
    """A router that looks into engines: under SGLang's rules only those that are stepped show their KV."""


class Remembering:
    """A router that remembers by their numbers which replicas got what: they must always be the same ones."""


class RoundRobin:
    """One after another."""

    def __init__(self, seed: int) -> None:
        self._next = 0

    def pick(self, request_id: int, replicas: Sequence[Candidate]) -> int:
        """Returns the replica whose turn it is."""
        self._next += 1
        return (self._next - 1) % len(replicas)

    def picks(self, request_ids: I64, replicas: int) -> I64:
        """Returns the replicas whose turns they are."""
        first, self._next = self._next, self._next + len(request_ids)
        return np.arange(first, self._next) % replicas


class Random:
    """Uniformly, by a hash of seed and request id, so that nothing else moves the choice."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def pick(self, request_id: int, replicas: Sequence[Candidate]) -> int:
        """Returns a replica that depends on the request alone."""
        return bits_once(self._seed, request_id, ROUTE) % len(replicas)

    def picks(self, request_ids: I64, replicas: int) -> I64:
        """Returns replicas that depend on each request alone."""
        return (bits_each(self._seed, request_ids, ROUTE) % np.uint64(replicas)).astype(np.int64)


class LeastOutstanding:
    """The replica with the fewest requests outstanding; the lowest number on a tie."""

    def __init__(self, seed: int) -> None:
        pass

    def pick(self, request_id: int, replicas: Sequence[Candidate]) -> int:
        """Returns the least loaded replica."""
        return self.choose(request_id, [replica.outstanding for replica in replicas])

    def choose(self, request_id: int, outstanding: Sequence[int]) -> int:
        """Returns the least loaded of replicas with so many requests outstanding."""
        return outstanding.index(min(outstanding))


class PowerOfTwo:
    """The less loaded of two replicas drawn by a hash of seed and request id; the first drawn on a tie.

    M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def pick(self, request_id: int, replicas: Sequence[Candidate]) -> int:
        """Returns the less loaded of two."""
        one, other = self._two(request_id, len(replicas))
        return other if replicas[other].outstanding < replicas[one].outstanding else one

    def choose(self, request_id: int, outstanding: Sequence[int]) -> int:
        """Returns the less loaded of two, by the number outstanding at each replica."""
        one, other = self._two(request_id, len(outstanding))
        return other if outstanding[other] < outstanding[one] else one

    def _two(self, request_id: int, replicas: int) -> tuple[int, int]:
        """Two different replicas, each pair as likely."""
        bits = bits_once(self._seed, request_id, ROUTE)
        if replicas == 1:
            return 0, 0
        one = bits % replicas
        other = (bits >> 32) % (replicas - 1)
        return one, other + (other >= one)


class LeastTokens:
    """The replica with the fewest prompt tokens outstanding; the lowest number on a tie."""

    def __init__(self, seed: int) -> None:
        pass

    def pick(self, request_id: int, replicas: Sequence[Weighed]) -> int:
        """Returns the least loaded replica."""
        tokens = [replica.prompt_tokens for replica in replicas]
        return tokens.index(min(tokens))


class LeastKv(Looking):
    """The replica whose engine reports the smallest share of KV in use; on a tie the fewest outstanding.

    As the kv-cache-utilization scorer of the Gateway API Inference Extension
    (docs/proposals/003-model-server-protocol), which llm-d builds on.
    """

    def __init__(self, seed: int) -> None:
        pass

    def pick(self, request_id: int, replicas: Sequence[Weighed]) -> int:
        """Returns the replica with the most room."""
        shares = [(replica.kv_usage, replica.outstanding) for replica in replicas]
        return shares.index(min(shares))


class Sticky(Remembering):
    """The replica of the session's first request, which goes where the fewest are outstanding."""

    def __init__(self, seed: int) -> None:
        self._of: dict[int, int] = {}
        self._session: I64 | None = None

    def told(self, table: RequestTable) -> None:
        """Takes the sessions."""
        self._session = table.session_id

    def pick(self, request_id: int, replicas: Sequence[Candidate]) -> int:
        """Returns the session's replica."""
        session = request_id if self._session is None else int(self._session[request_id])
        found = self._of.get(session)
        if found is None:
            outstanding = [replica.outstanding for replica in replicas]
            found = self._of[session] = outstanding.index(min(outstanding))
        return found


class Prefixes:
    """What prompts were sent where, as a router without word from the engines keeps it: hashes of the blocks
    that prompts begin with, a replica, the oldest forgotten.

    Blocks of 64 tokens, at most 256 a prompt, and 31,250 a replica: `hashBlockSize`, `maxPrefixBlocksToMatch`
    and `lruCapacityPerServer` of the Gateway API Inference Extension's prefix-cache scorer.
    """

    BLOCK, MOST, CAPACITY = 64, 256, 31_250

    def __init__(self) -> None:
        self._sent: dict[int, OrderedDict[object, None]] = {}
        self._table: RequestTable | None = None

    def told(self, table: RequestTable) -> None:
        """Takes what prompts are made of."""
        self._table = table

    def blocks(self, row: int) -> list[object]:
        """Returns a key of each whole block of a prompt, which stands for all before it."""
        table = self._table
        if table is None or table.segment_offset is None:
            return []
        assert table.segment_stream is not None
        assert table.segment_tokens is not None
        keys: list[object] = []
        path: tuple[tuple[int, int], ...] = ()
        start = 0
        for at in range(int(table.segment_offset[row]), int(table.segment_offset[row + 1])):
            stream, tokens = int(table.segment_stream[at]), int(table.segment_tokens[at])
            stop = start + tokens
            while len(keys) < self.MOST and (len(keys) + 1) * self.BLOCK <= stop:
                keys.append((path, stream, len(keys)))
            path, start = (*path, (stream, tokens)), stop
        return keys

    def matched(self, replica: int, keys: Sequence[object]) -> int:
        """Returns how many of a prompt's blocks were sent to a replica before, from the first on."""
        sent = self._sent.get(replica, OrderedDict())
        for count, key in enumerate(keys):
            if key not in sent:
                return count
        return len(keys)

    def note(self, replica: int, keys: Sequence[object]) -> None:
        """Notes that a prompt goes to a replica."""
        sent = self._sent.setdefault(replica, OrderedDict())
        for key in keys:
            sent[key] = None
            sent.move_to_end(key)
        while len(sent) > self.CAPACITY:
            sent.popitem(last=False)


class PrefixAffinity(Remembering):
    """The replica that was sent most of the prompt's beginning, of those that are not overloaded: at most
    `BOUND` times the mean outstanding, the request included. Without a match the fewest outstanding.

    The bound is that of consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, 2018).
    """

    BOUND = 1.25

    def __init__(self, seed: int) -> None:
        self._prefixes = Prefixes()

    def told(self, table: RequestTable) -> None:
        """Takes what prompts are made of."""
        self._prefixes.told(table)

    def pick(self, request_id: int, replicas: Sequence[Weighed]) -> int:
        """Returns the replica with the best score within the bound."""
        keys = self._prefixes.blocks(request_id)
        outstanding = [replica.outstanding for replica in replicas]
        most = self.BOUND * (sum(outstanding) + 1) / len(replicas)
        inside = [number for number, count in enumerate(outstanding) if count < most]
        scores = [
            self._score(replicas[number], self._prefixes.matched(number, keys), keys) for number in inside
        ]
        found = inside[scores.index(max(scores))]
        self._prefixes.note(found, keys)
        return found

    def _score(self, replica: Weighed, matched: int, keys: Sequence[object]) -> tuple[float, ...]:
        return (matched, -replica.outstanding)


class LlmD(PrefixAffinity):
    """llm-d's scores: 2 x the share of the prompt's blocks that match + 1 x (1 - requests / 128) / 2.

    llm-d/llm-d-inference-scheduler: the weights of a prefix-cache scorer and a scorer by load are 2 and 1 in
    deploy/config/pd-epp-config.yaml (3 and 1 in epp-prefix-cache-tracking-config.yaml); the load-aware scorer
    is 0.5 x (1 - waiting / 128), 0.5 without a queue (pkg/plugins/scorer/load_aware.go,
    `QueueThresholdDefault`). Newer samples have queue-scorer in its place, from 1 for the shortest queue to 0
    for the longest. Both count requests waiting in the engine; here those outstanding stand for them, which a
    gateway knows by itself. Within the bound of `prefix_affinity`.
    """

    PREFIX, LOAD, FULL = 2.0, 1.0, 128

    def _score(self, replica: Weighed, matched: int, keys: Sequence[object]) -> tuple[float, ...]:
        share = matched / len(keys) if keys else 0.0
        return (self.PREFIX * share + self.LOAD * 0.5 * max(1.0 - replica.outstanding / self.FULL, 0.0),)


class Dynamo(PrefixAffinity):
    """Dynamo's cost: prefill blocks + decode blocks, the least of all replicas.

    ai-dynamo/dynamo, `overlap_score_weight x potential_prefill_block + decode_block`, with its defaults
    (lib/bindings/python/rust/llm/entrypoint.rs): weight 1, temperature 0, no bound on load,
    `router_track_active_blocks` on and `router_track_output_blocks`, which its router guide calls
    experimental, off. So blocks of prompts outstanding count until their end, and blocks of outputs do not.
    Prefill blocks are those of the prompt that do not match.

    Differs from it: prompts that a replica is still computing count once, as decode blocks, where Dynamo adds
    them to the prefill blocks until the first token (`mark_prefill_completed`), of which this router is not
    told; blocks that prompts outstanding share count for each of them, where Dynamo counts a block once; what
    matches is what was sent there, as of Dynamo without KV events, without its time to live.
    """

    BOUND = inf

    def _score(self, replica: Weighed, matched: int, keys: Sequence[object]) -> tuple[float, ...]:
        prefill = len(keys) - matched
        return (-(prefill + replica.prompt_tokens / Prefixes.BLOCK + len(keys)),)


SHIPPED = (
    *(RoundRobin, Random, LeastOutstanding, PowerOfTwo, LeastTokens, LeastKv, Sticky),
    *(PrefixAffinity, LlmD, Dynamo),
)
"""Classes that stand here; whoever takes a new one in has looked at what it asks."""
ROUTERS: dict[str, Any] = {
    "round_robin": RoundRobin,
    "random": Random,
    "least_outstanding": LeastOutstanding,
    "power_of_two": PowerOfTwo,
    "least_tokens": LeastTokens,
    "least_kv": LeastKv,
    "session": Sticky,
    "prefix_affinity": PrefixAffinity,
    "llm_d": LlmD,
    "dynamo": Dynamo,
}
