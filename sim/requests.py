"""From a row of the request table to a request in an engine, with its luck drawn for life."""

from __future__ import annotations

from math import inf

from specfleet.sim.sequence import NEVER, Sequence
from specfleet.sim.speculation.lives import Lives
from specfleet.workloads.requests import RequestTable


class Request(Sequence):
    """A sequence with its luck and what the run notes about it.

    Args:
        accepted: drafts accepted in its successive verifications, at full depth.
        proposals: whether its successive samplings find drafts; None = always.
        counted: it belongs to the measured part of the run.
        temperature: of its sampling.
        confidence: survival by position that its drafter expects of its own drafts.
        by_output_position: accepted and proposals belong to output tokens written, not to successive rounds.
        output_stream: as in `Sequence`.
        traffic_class: its class's name.
    """

    __slots__ = (
        "accepted",
        "accepted_tokens",
        "admitted_s",
        "arrived_s",
        "by_output_position",
        "cached_tokens",
        "chunks",
        "confidence",
        "counted",
        "draft_tokens",
        "first_chunk_rank",
        "first_iteration",
        "first_token_s",
        "last_iteration",
        "proposals",
        "samplings",
        "temperature",
        "traffic_class",
        "verifications",
    )

    def __init__(
        self,
        id: int,
        prompt_tokens: int,
        max_tokens: int,
        stop_at: int = NEVER,
        priority: int = 0,
        segments: tuple[tuple[object, int], ...] | None = None,
        accepted: bytes = b"",
        proposals: bytes | None = None,
        counted: bool = True,
        temperature: float = 0.0,
        confidence: tuple[float, ...] = (),
        by_output_position: bool = False,
        output_stream: object = None,
        traffic_class: str = "default",
    ) -> None:
        super().__init__(id, prompt_tokens, max_tokens, stop_at, priority, segments, output_stream)
        self.accepted = accepted
        self.proposals = proposals
        self.counted = counted
        self.temperature = temperature
        self.traffic_class = traffic_class
        self.confidence = confidence
        self.by_output_position = by_output_position
        self.arrived_s = self.admitted_s = self.first_token_s = inf
        self.first_chunk_rank = 0
        self.first_iteration = -1
        self.cached_tokens = 0
        self.chunks = 0
        self.samplings = 0
        self.verifications = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.last_iteration = -1


class RequestMaker:
    """Makes requests.

    Args:
        table: of all requests; the row number is the request's id.
        lives: their luck; None without speculation.
        num_warmups: requests with a lower row number are not measured.
        with_confidence: a policy asks what a drafter expects of its drafts.
        ahead: as in `Lives.accepted`.
    """

    def __init__(
        self,
        table: RequestTable,
        lives: Lives | None,
        num_warmups: int,
        with_confidence: bool,
        ahead: bool = False,
    ) -> None:
        self.table = table
        self.lives = lives
        self.num_warmups = num_warmups
        self.with_confidence = with_confidence
        self.ahead = ahead

    def request(self, row: int) -> Request:
        """Makes the request of a row."""
        table = self.table
        prompt, output, most = (
            int(column[row]) for column in (table.prompt_tokens, table.output_tokens, table.max_tokens)
        )
        accepted, proposals = b"", None
        confidence: tuple[float, ...] = ()
        by_output_position = False
        if self.lives is not None:
            self.lives.foresee(row)
            accepted = self.lives.accepted(row, self.ahead)
            proposals = None if self.ahead else self.lives.proposals(row)
            by_output_position = self.lives.process(row).by_output_position
            if self.with_confidence:
                confidence = self.lives.confidence(row)
        return Request(
            row,
            prompt,
            most,
            stop_at=output if output < most else NEVER,
            priority=int(table.priority[row]),
            segments=segments_of(table, row),
            accepted=accepted,
            proposals=proposals,
            counted=row >= self.num_warmups,
            temperature=float(table.temperature[row]),
            confidence=confidence,
            by_output_position=by_output_position,
            output_stream=None if table.output_stream is None else int(table.output_stream[row]),
            traffic_class=table.class_names[int(table.class_id[row])],
        )


def segments_of(table: RequestTable, row: int) -> tuple[tuple[object, int], ...] | None:
    """Returns a row's prompt as (stream, n) pieces; None for a private stream."""
    if table.segment_offset is None or table.segment_stream is None or table.segment_tokens is None:
        return None
    first, end = int(table.segment_offset[row]), int(table.segment_offset[row + 1])
    return tuple(
        (int(stream), int(tokens))
        for stream, tokens in zip(
            table.segment_stream[first:end], table.segment_tokens[first:end], strict=True
        )
    )
