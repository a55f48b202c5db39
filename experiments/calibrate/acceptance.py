"""`specfleet calibrate --acceptance REPORT`: what an engine counted, as an `acceptance:` block."""

from __future__ import annotations

from pathlib import Path

import yaml

from specfleet.experiments.calibrate.readers import Measured, from_log, from_prometheus, from_requests
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults


def read_report(path: Path, before: Path | None = None) -> Measured:
    """Returns the acceptance of a server log, a scrape of /metrics, or per-request metrics; told apart by
    what they hold.

    Args:
        path: the report.
        before: for a scrape: one from the start of the measurement, taken off.

    Raises:
        InputFaults: if it is none of the three, or holds no drafts.
        OSError: if a file cannot be read.
    """
    text = _text(path)
    try:
        if "vllm:spec_decode_" in text:
            return from_prometheus(text, _text(before) if before else "")
        if "SpecDecoding metrics" in text:
            return from_log(text)
        if text.lstrip()[:1] in ("{", "["):
            return from_requests(text)
        raise ValueError(
            "is no vLLM log with 'SpecDecoding metrics' lines, no scrape with vllm:spec_decode_* counters "
            "and no JSON of requests"
        )
    except ValueError as error:
        raise InputFaults([Fault(COMMAND_LINE, 0, "--acceptance", f"{path}: {error}")]) from None


def _text(path: Path) -> str:
    """Returns what a file says; bytes that are no UTF-8, as terminals leave them in logs, are marked."""
    return path.read_text(encoding="utf-8", errors="replace")


def acceptance_command(path: Path, before: Path | None, out: Path) -> int:
    """Prints the block, writes it beside the profile as NAME.acceptance.yaml; returns 0."""
    measured = read_report(path, before)
    text = yaml.safe_dump({"acceptance": measured.block()}, sort_keys=False, allow_unicode=True, width=110)
    written = out.with_name(f"{out.stem}.acceptance.yaml")
    written.write_text(text, encoding="utf-8")
    print(text, end="")
    for reason, n in measured.left_out:
        print(f"# left out {n}: {reason}")
    if measured.concentration is None:
        print("# spread between requests is not in this report: concentration stays an assumption")
    print(f"wrote {written}")
    return 0
