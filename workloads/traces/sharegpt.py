"""ShareGPT: a JSON list of conversations as text, without times.

A request is the first turn and its answer, as `vllm bench serve` takes it, without that tool's limits on
lengths. Tokens are characters over a ratio that has to be stated.
"""

from __future__ import annotations

import math

from specfleet.workloads.traces.files import TraceFile
from specfleet.workloads.traces.layout import OBJECTS, Rows, TraceFormat
from specfleet.workloads.traces.options import ReadOptions
from specfleet.workloads.traces.report import TraceError
from specfleet.workloads.traces.rows import Row, rejected


def _rows(file: TraceFile, options: ReadOptions) -> Rows:
    """A row of every conversation."""
    ratio = options.characters_per_token
    if ratio is None:
        raise TraceError(
            f"{file.path}: holds text, and a request is counted in tokens; set characters_per_token (English "
            "text has about 4; a tokenizer tells)"
        )
    for place, record in file.objects():
        turns = record.get("conversations", record.get("conversation")) if record else None
        texts = (
            [turn.get("value") for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
        )
        said = [one for one in texts[:2] if isinstance(one, str)]
        if len(said) < 2:
            yield place, rejected("fewer than two turns"), None
        else:
            prompt, output = (math.ceil(len(one) / ratio) for one in said)
            yield place, Row(None, prompt, output), None


read_sharegpt = TraceFormat(
    "ShareGPT conversations", OBJECTS, ("conversations",), rows=_rows, ordered=False, place="request"
)
