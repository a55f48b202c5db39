"""`specfleet calibrate --acceptance REPORT`: what an engine counted, as an `acceptance:` block."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from specfleet.experiments.calibrate.predicted import every_k, prediction_text
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults
from specfleet.experiments.tools.counts import Measured, from_log, from_prometheus, from_requests
from specfleet.experiments.tools.file import decoded
from specfleet.experiments.tools.read import read_tool
from specfleet.experiments.tools.result import ToolResult

OWN_REPORTS = ("acceptance_histogram", "per_step_accepted")
"""Keys of vLLM's speculation metrics of single requests."""


def read_report(path: Path, before: Path | None = None, format_: str | None = None) -> Measured:
    """Returns the acceptance of a scrape of /metrics, per-request metrics, or a log or result of any tool;
    told apart by what they hold.

    Args:
        path: the report.
        before: for a scrape of vLLM: one from the start of the measurement, taken off.
        format_: a name in `tools.read.FORMATS`; None tells it from what the file holds.

    Raises:
        InputFaults: if it is none of them, or holds no drafts.
        OSError: if a file cannot be read.
    """
    text = decoded(path.read_bytes())
    try:
        if format_ is None and "vllm:spec_decode_" in text and not _is_json(text):
            return from_prometheus(text, decoded(before.read_bytes()) if before else "")
        if before is not None:
            raise ValueError(
                "is no scrape with vllm:spec_decode_* counters, which --before is for; leave it out"
            )
        if format_ is None and "SpecDecoding metrics" in text and not _is_json(text):
            return from_log(text)
        if format_ is None and any(key in text for key in OWN_REPORTS):
            return from_requests(text)
    except ValueError as error:
        raise InputFaults([Fault(COMMAND_LINE, 0, "--acceptance", f"{path}: {error}")]) from None
    reading = read_tool(path, format_)
    print(reading.said(), file=sys.stderr)
    counted = [one for one in reading.results if one.counted and one.drafts != 0]
    if len(counted) != 1:
        said = f"holds {len(counted)} results with drafts; give one" if counted else _without(text)
        raise InputFaults([Fault(str(path), 0, "", said)])
    return _of(counted[0])


def _without(text: str) -> str:
    """Returns what to do about a report without drafts."""
    known = "a vLLM log with 'SpecDecoding metrics' lines" if not _is_json(text) else "a result with counters"
    return (
        f"no drafts counted: the server did not draft, or its tool does not count; give {known}, or a scrape"
    )


def _is_json(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[")


def _of(result: ToolResult) -> Measured:
    """Returns the acceptance of a result that counts drafts; InputFaults if it counts no more than that."""
    rates, length = result.per_position_acceptance_rates, result.acceptance_length
    rounds = result.numbers.get("spec_decode_num_drafts", 0.0)
    if not rates and length is None:
        message = "counts drafts, and neither rounds nor an acceptance length; give a scrape of /metrics"
        raise InputFaults([Fault(result.name, 0, "", message)])
    return Measured(
        source=f"{result.name}, {rounds:,.0f} rounds" if rounds else result.name,
        by_position=rates,
        rounds=rounds,
        acceptance_length=None if rates else length,
        measured_at_k=None if rates else result.drafts,
    )


def acceptance_command(
    path: Path,
    before: Path | None,
    out: Path,
    format_: str | None = None,
    method: str | None = None,
    elsewhere: bool = False,
) -> int:
    """Prints the block and writes it beside the profile as NAME.acceptance.yaml; returns 0.

    Args:
        path, before, format_: as `read_report`.
        out: the profile.
        method: of drafting; with it the block says its K, and what it predicts for others is printed.
        elsewhere: the prediction is for another data set than the report's.

    Raises:
        InputFaults: as `read_report` and `every_k`, or for `elsewhere` without a method.
    """
    if elsewhere and method is None:
        message = "needs --method, the way of drafting: what is predicted goes by it"
        raise InputFaults([Fault(COMMAND_LINE, 0, "--other-data-set", message)])
    measured = read_report(path, before, format_)
    block, found = measured.block(), None
    if method is not None:
        found = every_k(measured, method, elsewhere)
        block["measured_at_k"] = found.counted.k
        if found.concentration_range is not None:
            block["concentration_range"] = list(found.concentration_range)
    text = yaml.safe_dump({"acceptance": block}, sort_keys=False, allow_unicode=True, width=110)
    written = out.with_name(f"{out.stem}.acceptance.yaml")
    written.write_text(text, encoding="utf-8")
    print(text, end="")
    for reason, n in measured.left_out:
        print(f"# left out {n}: {reason}")
    if not measured.by_position and measured.measured_at_k is None:
        print("# it does not say K: add measured_at_k, the drafts a round of that server")
    if measured.concentration is None:
        print("# spread between requests is not in this report: concentration stays an assumption")
    if found is not None:
        print(prediction_text(found))
    elif measured.by_position:
        print("# for other K's, with intervals: --method and the way of drafting, such as eagle3")
    print(f"wrote {written}")
    return 0
