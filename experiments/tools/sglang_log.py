"""The log of SGLang's server: a line every 40 decoding steps about what runs, and its arguments at the start.

`accept len` counts the target's own token. What `accept rate` divides by changed between versions, so it is
not read. K is `speculative_num_draft_tokens` of the arguments less the root.
"""

from __future__ import annotations

import re

from specfleet.experiments.tools.file import ToolFile, Unreadable
from specfleet.experiments.tools.logs import LogLine, float_of, under_load
from specfleet.experiments.tools.result import ToolResult, result

_LINE = re.compile(r"^(.*)Decode batch[.,].*?#running-req: (\d+)(.*)$", re.MULTILINE)
_THROUGHPUT = re.compile(r"gen throughput \(token/s\): ([\d.]+)")
_QUEUE = re.compile(r"#queue-req: (\d+)")
_LENGTH = re.compile(r"accept len: ([\d.]+)")
_RANK = re.compile(r"\bDP(\d+)\b")
_NODES = re.compile(r"speculative_num_draft_tokens=(\d{1,4})\b")
_ALGORITHM = re.compile(r"speculative_algorithm='?(\w+)")
_POOL = re.compile(r"max_total_num_tokens=(\d{1,15})")


def recognises(file: ToolFile) -> bool:
    """Whether a line about a decoding batch of SGLang's stands in the text."""
    return _LINE.search(file.text) is not None


def read(file: ToolFile) -> list[ToolResult]:
    """Returns the log as one result."""
    moments = []
    for head, running, rest in _LINE.findall(file.text):
        throughput = float_of(_first(_THROUGHPUT, rest))
        if throughput is None or len(running) > 12:
            continue
        rank = _first(_RANK, head) or ""
        waiting, length = float_of(_first(_QUEUE, rest)) or 0.0, float_of(_first(_LENGTH, rest))
        moments.append(LogLine(rank, float(running), waiting, throughput, length))
    if not moments:
        raise Unreadable("no line 'Decode batch' with a gen throughput; give the log of a server under load")
    values, said = under_load(moments, "line 'Decode batch'")
    if pool := _first(_POOL, file.text):
        values["kv_pool_tokens"] = pool
    nodes, algorithm = _first(_NODES, file.text), _first(_ALGORITHM, file.text)
    drafts = int(nodes) - 1 if nodes and algorithm not in (None, "None") else None
    if drafts is None and algorithm == "None":
        drafts = 0
    return [result(file.name, values, drafts=drafts, notes=[f"SGLang log: {said}"])]


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None
