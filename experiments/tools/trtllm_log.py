"""TensorRT-LLM: the log of its iterations (`print_iter_log`), or its statistics as JSON (`/metrics`).

A step that only decodes says its time and its tokens, those to verify included: 1 + K a sequence. The
statistics say what was accepted; their acceptance length counts the target's own token.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np

from specfleet.experiments.tools.file import ToolFile, Unreadable
from specfleet.experiments.tools.impossible import number
from specfleet.experiments.tools.logs import float_of
from specfleet.experiments.tools.result import ToolResult, part, result

_ROWS = re.compile(r"num_scheduled_requests(?: =|:) ?(\d{1,9})")
_STEP = re.compile(r"host_step_time = ([\d.]+) ?ms|elapsed_time = ([\d.]+) ?s")
_CONTEXT = re.compile(r"'num_ctx_tokens': (\d{1,9})")
_GENERATED = re.compile(r"'num_generation_tokens': (\d{1,9})")
_STATISTICS = ("inflightBatchingStats", "specDecodingStats")


def recognises(file: ToolFile) -> bool:
    """Whether a line about an iteration, or an object with its statistics, stands in the file."""
    if file.is_json:
        return any(key in found for _, found in file.objects for key in _STATISTICS)
    return "'num_generation_tokens'" in file.text and "iter = " in file.text


def read(file: ToolFile) -> list[ToolResult]:
    """Returns the log, or the statistics, as one result."""
    steps, values = _of_statistics(file) if file.is_json else (_of_log(file), {})
    if not steps and not values:
        raise Unreadable("no iteration that only decodes; log iterations while the server is under load")
    notes = []
    drafts: int | None = None
    if steps:
        batch, _ = Counter(rows for rows, _, _ in steps).most_common(1)[0]
        here = [(ms, tokens) for rows, ms, tokens in steps if rows == batch]
        step = float(np.median([ms for ms, _ in here]))
        each = float(np.median([tokens for _, tokens in here])) / batch
        drafts = max(0, round(each) - 1)
        length = number(values.get("spec_decode_acceptance_length")) or (1.0 if not drafts else None)
        values |= {"max_concurrency": batch, "mean_itl_ms": step, "median_itl_ms": step}
        if length is not None and step > 0.0:
            values |= {"mean_tpot_ms": step / length, "output_throughput": 1e3 * batch * length / step}
        notes.append(
            f"TensorRT-LLM: median of {len(here)} of {len(steps)} decoding steps, those with {batch} "
            "sequences, the commonest number; concurrency is that number"
        )
    return [result(file.name, values, drafts=drafts, notes=notes)]


def _of_log(file: ToolFile) -> list[tuple[int, float, float]]:
    """Returns (sequences, ms, tokens) of the steps that only decode."""
    steps = []
    for line in file.lines:
        rows, step, generated = _ROWS.search(line), _STEP.search(line), _GENERATED.search(line)
        context = _CONTEXT.search(line)
        if rows is None or step is None or generated is None or (context is not None and int(context[1])):
            continue
        seconds = float_of(step[2])
        time = float_of(step[1]) if seconds is None else 1e3 * seconds
        if time and int(rows[1]) and int(generated[1]):
            steps.append((int(rows[1]), time, float(generated[1])))
    return steps


def _of_statistics(file: ToolFile) -> tuple[list[tuple[int, float, float]], dict[str, object]]:
    """Returns the decoding steps and what was accepted over all of them."""
    steps = []
    rounds = drafted = accepted = 0.0
    for _, found in file.objects:
        spec = found.get("specDecodingStats")
        made, kept, count = (
            number(part(spec, key)) or 0.0
            for key in ("numDraftTokens", "numAcceptedTokens", "numRequestsWithDraftTokens")
        )
        length = number(part(spec, "acceptanceLength"))
        if made and not count and length is not None and length > 1.0:
            count = kept / (length - 1.0)
        rounds, drafted, accepted = rounds + count, drafted + made, accepted + kept
        if (step := _step(found, made)) is not None:
            steps.append(step)
    values: dict[str, object] = {}
    if rounds and drafted:
        values["spec_decode_num_drafts"], values["spec_decode_draft_tokens"] = rounds, drafted
        values["spec_decode_accepted_tokens"] = accepted
        values["spec_decode_acceptance_length"] = 1.0 + accepted / rounds
    return steps, values


def _step(found: Mapping[str, object], drafted: float) -> tuple[int, float, float] | None:
    """Returns (sequences, ms, tokens) of a step that only decodes."""
    batch = found.get("inflightBatchingStats")
    rows, context, time = (
        number(value) or 0.0
        for value in (
            part(batch, "numGenRequests"),
            part(batch, "numContextRequests"),
            found.get("iterLatencyMS"),
        )
    )
    if context or not 0.0 < rows < 1e9 or not 0.0 < time < 1e12:
        return None
    return round(rows), time, rows + drafted
