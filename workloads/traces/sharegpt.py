"""Conversations as text, without times: ShareGPT's JSON list, and lists of chat messages.

A request is the first turn and its answer, as `vllm bench serve` takes it, without that tool's limits on
lengths; where turns wait for answers every turn is one, and its prompt all that was said before it, as vLLM's
`benchmark_serving_multi_turn.py` sends them. Tokens are characters over a ratio that has to be stated; what a
chat template adds is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from specfleet.workloads.traces.files import Record, TraceFile
from specfleet.workloads.traces.layout import OBJECTS, Rows, TraceFormat
from specfleet.workloads.traces.options import ReadOptions
from specfleet.workloads.traces.report import TraceError
from specfleet.workloads.traces.rows import Row, rejected

ANSWERS = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
"""Who answers, in the lists that are around."""


def _rows(file: TraceFile, options: ReadOptions, who: str, what: str) -> Rows:
    """The rows of every conversation, whose entries say `who` speaks and `what`."""
    ratio = options.characters_per_token
    if ratio is None:
        raise TraceError(
            f"{file.path}: holds text, and a request is counted in tokens; set characters_per_token (English "
            "text has about 4; a tokenizer tells)"
        )
    for place, record in file.objects():
        said = _said(record, what)
        if len(said) < 2:
            yield place, rejected("fewer than two turns"), None
        elif options.turns == "arrivals":
            prompt, output = (math.ceil(len(str(entry[what])) / ratio) for entry in said[:2])
            yield place, Row(None, prompt, output), None
        else:
            yield from ((place, row, None) for row in _turns(said, f"{place}", ratio, who, what))


def _said(record: Record | None, what: str) -> list[Record]:
    """The entries of a conversation that hold text."""
    keys = ("conversations", "conversation", "messages")
    found = next((record[key] for key in keys if record and key in record), None)
    entries = found if isinstance(found, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get(what), str)]


def _turns(said: list[Record], session: str, ratio: float, who: str, what: str) -> Iterator[Row]:
    """A row of every answer: what was said before it, and itself."""
    characters = turn = 0
    for entry in said:
        length = len(str(entry[what]))
        if entry.get(who) in ANSWERS and characters:
            prompt, end = math.ceil(characters / ratio), math.ceil((characters + length) / ratio)
            yield Row(None, prompt, end - prompt, session, turn=turn)
            turn += 1
        characters += length


read_sharegpt = TraceFormat(
    "ShareGPT conversations",
    OBJECTS,
    ("conversations",),
    rows=partial(_rows, who="from", what="value"),
    ordered=False,
    place="request",
)
read_messages = TraceFormat(
    "conversations of chat messages",
    OBJECTS,
    ("messages",),
    absent=("conversations",),
    rows=partial(_rows, who="role", what="content"),
    ordered=False,
    place="request",
)
