"""Requests that were begun more than once, because the replica they were at failed.

Each time that a request is at a replica is an attempt: a request of its own to the engine there. What is kept
of one that was cut short goes on in the next; the request's row in the run's columns says what all of them
came to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan

import numpy as np

from specfleet.sim.recorder import LOST, Columns
from specfleet.sim.requests import Request
from specfleet.sim.sequence import FINISHED, NEVER, Batch, Sequence

ATTEMPT_TIMES = ("arrived_s", "admitted_s", "first_token_s", "finished_s", "lost_s")
ATTEMPT_COUNTS = (
    "request_id",
    "status",
    "replica",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "chunks",
    "first_iteration",
    "last_iteration",
    "verifications",
    "draft_tokens",
    "accepted_tokens",
    "preemptions",
    "counted",
)
SUMMED = ("chunks", "verifications", "draft_tokens", "accepted_tokens", "preemptions")
"""Counts of a request that are those of all its attempts."""
RETRIED_COUNTS = ("retries", "wasted_tokens", "recomputed_tokens")
"""Columns of requests where replicas may fail: how often each was sent anew; output tokens thrown away;
tokens whose KV was lost, which is computed again where the request goes on."""


@dataclass
class Story:
    """What a request has behind it when it is sent anew.

    Attributes:
        attempts: that were cut short.
        kept: output tokens of them that it goes on from.
        rounds, samplings: verifications and samplings that those took.
        arrived_s: when the first began. admitted_s, first_token_s, first_rank: of the one that wrote the
            first token kept. last_token_s: when the last token kept was written.
        wasted, recomputed: as in `RETRIED_COUNTS`.
        sums: of all attempts, by the names in `SUMMED`.
    """

    attempts: int = 0
    kept: int = 0
    rounds: int = 0
    samplings: int = 0
    arrived_s: float = nan
    admitted_s: float = nan
    first_token_s: float = nan
    first_rank: int = 0
    last_token_s: float = nan
    wasted: int = 0
    recomputed: int = 0
    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SUMMED, 0))


class Attempts:
    """The attempts of requests that replicas lost.

    Args:
        keep_partial: output that was written is kept.
        stories: by request; of several pools the same, since a request may go on in another.

    Attributes:
        cuts: replica and start of every step that a failure cut short; it is in no column of iterations.
        pauses: from the last token kept to the next: end, seconds, request, replica, iteration, counted.
    """

    def __init__(self, keep_partial: bool, stories: dict[int, Story] | None = None) -> None:
        self.keep_partial = keep_partial
        self.stories: dict[int, Story] = {} if stories is None else stories
        self.cuts: list[tuple[int, float]] = []
        self.pauses: list[tuple[float, float, int, int, int, bool]] = []
        self._rows: list[tuple[float, ...]] = []

    def resume(self, request: Request) -> Request:
        """Makes an attempt of a request that was just made: it goes on from what is kept.

        Its luck goes on, too: round n is what it would have been without the failure. Where nothing is kept
        it begins anew, with the same luck as the first time.
        """
        story = self.stories.get(request.id)
        if story is None or not story.kept:
            return request
        kept = story.kept
        used = kept if request.by_output_position else story.rounds
        asked = kept if request.by_output_position else story.samplings
        request.accepted = request.accepted[used:]
        if request.proposals is not None:
            request.proposals = request.proposals[asked:]
        *before, (stream, tokens) = request.segments
        written = request.output_stream
        segments = (*request.segments, (written, kept))
        request.segments = (*before, (stream, tokens + kept)) if stream == written else segments
        request.prompt_tokens += kept
        request.num_tokens = request.prompt_tokens
        request.max_tokens -= kept
        if request.stop_at != NEVER:
            request.stop_at -= kept
        return request

    def lose(self, request: Request, replica: int, cut_s: float, now: float, last_token_s: float) -> None:
        """Notes an attempt that ends with its replica.

        Args:
            request: with nothing in flight.
            replica: where it was.
            cut_s: when the step began that was cut short.
            now: when it is known to be lost.
            last_token_s: when its last token was written; nan of one that has none.
        """
        story = self.stories.setdefault(request.id, Story())
        tokens = request.num_output_tokens
        self._note(request, replica, max(cut_s, request.arrived_s), LOST, now)
        self._pause(story, request, replica)
        if story.attempts == 0:
            story.arrived_s = request.arrived_s
        story.attempts += 1
        computed = request.num_computed_tokens - request.num_in_flight_tokens - request.cached_tokens
        story.recomputed += max(computed, 0)
        for name in SUMMED:
            story.sums[name] += _count(request, name)
        if not self.keep_partial:
            story.wasted += tokens
            return
        if tokens and not story.kept:
            story.admitted_s, story.first_token_s = request.admitted_s, request.first_token_s
            story.first_rank = request.first_chunk_rank
        story.kept += tokens
        story.rounds += request.verifications
        story.samplings += request.samplings
        if tokens:
            story.last_token_s = last_token_s

    def refused(self, row: int, now: float) -> None:
        """Notes that a request came to a replica that was dead."""
        story = self.stories.setdefault(row, Story())
        if story.attempts == 0:
            story.arrived_s = now
        story.attempts += 1

    def ended(self, request: Request, replica: int, now: float, status: int) -> dict[str, float]:
        """Notes the attempt that ends a request; returns the columns of the request that it changes."""
        story = self.stories.get(request.id)
        if story is None:
            return {}
        self._note(request, replica, now, status, nan)
        self._pause(story, request, replica)
        found: dict[str, float] = {name: n + _count(request, name) for name, n in story.sums.items()}
        found |= self.costs(request.id)
        found["arrived_s"] = story.arrived_s
        prompt = request.prompt_tokens - story.kept
        found["cached_tokens"] = min(request.cached_tokens, prompt)
        if story.kept:
            found |= {"admitted_s": story.admitted_s, "first_token_s": story.first_token_s}
            found["output_tokens"] = story.kept + request.num_output_tokens
            found["interrupted_s"] = request.first_token_s - story.first_token_s
        return found

    def gone(self, row: int) -> dict[str, float]:
        """Returns the columns of a request that ends because it is not sent anew any more."""
        story = self.stories[row]
        found = {**story.sums, **self.given_up(row), "arrived_s": story.arrived_s}
        return found | {"retries": story.attempts - 1}

    def given_up(self, row: int) -> dict[str, float]:
        """Returns what failures have cost a request that ends before it is at a replica again."""
        story = self.stories[row]
        story.wasted += story.kept
        story.kept = 0
        return self.costs(row)

    def costs(self, row: int) -> dict[str, float]:
        """Returns what failures have cost a request so far, by `RETRIED_COUNTS`."""
        story = self.stories[row]
        return {
            "retries": story.attempts,
            "wasted_tokens": story.wasted,
            "recomputed_tokens": story.recomputed,
        }

    def first_token(self, request: Request) -> tuple[float, int]:
        """Returns when the first token was written that a request's client has, and its rank in the step."""
        story = self.stories.get(request.id)
        if story is None or not story.kept:
            return request.first_token_s, request.first_chunk_rank
        return story.first_token_s, story.first_rank

    def columns(self) -> Columns:
        """Returns every attempt of requests that a replica lost, a row each; `finished_s` of one that was cut
        short is when the last step of its replica ended that it could be in, `lost_s` when that was known."""
        table = np.array(self._rows, dtype=np.float64)
        table = table.reshape(-1, len(ATTEMPT_TIMES) + len(ATTEMPT_COUNTS))
        found: Columns = {name: table[:, at] for at, name in enumerate(ATTEMPT_TIMES)}
        rest = table[:, len(ATTEMPT_TIMES) :].astype(np.int64)
        return found | {name: rest[:, at] for at, name in enumerate(ATTEMPT_COUNTS)}

    def with_pauses(self, gaps: Columns) -> Columns:
        """Returns pauses of a run with those that failures made, in order of time; these come from iteration
        -1, since that was on another replica."""
        if not self.pauses:
            return gaps
        own = np.array(self.pauses, dtype=np.float64)
        ends, seconds, who, where, to, counted = own.T
        more: Columns = {"request_id": who, "replica": where, "to_iteration": to, "counted": counted}
        more |= {"from_iteration": np.full(len(own), -1), "tokens": np.ones(len(own))}
        more |= {"end_s": ends, "gap_s": seconds}
        joined = {name: np.concatenate([gaps[name], more[name].astype(gaps[name].dtype)]) for name in gaps}
        order = np.argsort(joined["end_s"], kind="stable")
        return {name: column[order] for name, column in joined.items()}

    def _pause(self, story: Story, request: Request, replica: int) -> None:
        """Notes how long the client waited for the token behind those that were kept."""
        if story.kept and request.chunks:
            end_s = request.first_token_s
            row = (end_s, end_s - story.last_token_s, request.id, replica, request.first_iteration)
            self.pauses.append((*row, request.counted))

    def _note(self, request: Request, replica: int, end_s: float, status: int, lost_s: float) -> None:
        admitted_s = request.admitted_s if request.admitted_s <= end_s else nan
        first_s = request.first_token_s if request.chunks else nan
        times = (request.arrived_s, admitted_s, first_s, end_s, lost_s)
        self._rows.append(
            (
                *times,
                request.id,
                status,
                replica,
                request.prompt_tokens,
                request.num_output_tokens,
                request.cached_tokens,
                request.chunks,
                request.first_iteration,
                request.last_iteration,
                request.verifications,
                request.draft_tokens,
                request.accepted_tokens,
                request.num_preemptions,
                request.counted,
            )
        )


def _count(request: Request, name: str) -> int:
    found: int = request.num_preemptions if name == "preemptions" else getattr(request, name)
    return found


def undraw(step: Batch, sampled: list[int], histogram: list[int], gone: set[Sequence] | None) -> None:
    """Takes back the luck that was drawn for a step in flight, which brings nothing.

    Args:
        step: all of whose rows are listed, or those of `gone`.
        sampled: tokens of the rows that were listed from the start.
        histogram: measured verifications by drafts accepted; less by those of the step.
        gone: who has just been aborted, whose rows alone are meant (not by id: an earlier attempt of the same
            request may be in the step still, in vain); None: all who have not ended.
    """
    batch = step.tail
    for sequence, drafts, new in zip(batch.sequences, batch.num_drafts, step.tokens(sampled), strict=True):
        meant = sequence.state != FINISHED if gone is None else sequence in gone
        if new and drafts and meant and sequence.id not in batch.void:
            assert isinstance(sequence, Request)
            sequence.verifications -= 1
            sequence.draft_tokens -= drafts
            sequence.accepted_tokens -= new - 1
            if sequence.counted:
                histogram[new - 1] -= 1
