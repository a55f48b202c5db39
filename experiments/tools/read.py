"""Which tool wrote a file, and what it measured. `FORMATS` lists them: name, title, module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults, did_you_mean, on_one_line
from specfleet.experiments.tools import (
    aiperf,
    console,
    guidellm,
    inferencex,
    llamacpp_log,
    llmperf,
    prometheus,
    sglang_bench,
    sglang_log,
    trtllm_log,
    vllm_bench,
    vllm_log,
)
from specfleet.experiments.tools.file import ToolFile, Unreadable
from specfleet.experiments.tools.result import ToolResult


@dataclass(frozen=True)
class ToolFormat:
    """A kind of file.

    Args:
        title: what it is, in words.
        module: with `recognises(file) -> bool` and `read(file) -> list[ToolResult]`.
        json: whether it is JSON; a format may be both.
        text: whether it is lines of text.
    """

    title: str
    module: ModuleType
    json: bool = True
    text: bool = False


FORMATS = {
    "guidellm": ToolFormat("guidellm's benchmarks", guidellm),
    "aiperf": ToolFormat("AIPerf or GenAI-Perf export", aiperf),
    "llmperf": ToolFormat("llmperf summary", llmperf),
    "inferencex": ToolFormat("InferenceX aggregate", inferencex),
    "sglang-bench": ToolFormat("SGLang's bench_serving", sglang_bench),
    "trtllm-log": ToolFormat("TensorRT-LLM's iterations", trtllm_log, text=True),
    "vllm-bench": ToolFormat("vllm bench serve", vllm_bench),
    "bench-table": ToolFormat("a serving benchmark's printed table", console, json=False, text=True),
    "vllm-log": ToolFormat("vLLM server log", vllm_log, json=False, text=True),
    "sglang-log": ToolFormat("SGLang server log", sglang_log, json=False, text=True),
    "llamacpp-log": ToolFormat("llama.cpp server log", llamacpp_log, json=False, text=True),
    "prometheus": ToolFormat("Prometheus scrape", prometheus, json=False, text=True),
}
"""Formats by name, in the order in which they are asked whether a file is theirs."""


@dataclass(frozen=True)
class ToolReading:
    """What a file holds.

    Args:
        path: of the file.
        format: a name in `FORMATS`.
        results: at least one.
    """

    path: Path
    format: str
    results: list[ToolResult]

    def said(self) -> str:
        """Returns how the file was read, in a line."""
        n = len(self.results)
        counted = f"{n} result{'s' * (n != 1)}"
        title = FORMATS[self.format].title
        return f"{on_one_line(str(self.path))}: read as {title}, {counted} (--format {self.format})"


def check_format(name: str | None) -> None:
    """Raises InputFaults for a name that is none of `FORMATS`."""
    if name is not None and name not in FORMATS:
        message = f"{name!r} is unknown; {did_you_mean(name, FORMATS)}"
        raise InputFaults([Fault(COMMAND_LINE, 0, "--format", message)])


def read_tool(path: Path, format_: str | None = None) -> ToolReading:
    """Returns what a file of any known tool measured.

    Args:
        path: of the file.
        format_: its name in `FORMATS`, or None to tell it from what the file holds.

    Raises:
        InputFaults: for a file that cannot be read, of no known format, or with something impossible in it.
    """
    check_format(format_)
    try:
        file = ToolFile.of(path)
    except FileNotFoundError:
        raise InputFaults([Fault(str(path), 0, "", "there is no such file; check the path")]) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "its name is no path"
        raise InputFaults([Fault(str(path), 0, "", f"cannot be read: {why}; check the path")]) from None
    try:
        name = format_ or detected(file)
        results = FORMATS[name].module.read(file)
        if not results:
            raise Unreadable(f"holds no result of {FORMATS[name].title}; {_which(file)}")
    except Unreadable as fault:
        raise InputFaults([Fault(str(path), fault.line, fault.key, fault.message)]) from None
    except (OverflowError, RecursionError) as error:
        raise InputFaults([Fault(str(path), 0, "", f"holds numbers that no tool writes: {error}")]) from None
    return ToolReading(path, name, results)


def detected(file: ToolFile) -> str:
    """Returns the name of a file's format; Unreadable if it is none of them."""
    if file.is_json and not file.objects:
        raise Unreadable("holds no JSON object, so no result; " + _which(file))
    for name, kind in FORMATS.items():
        if (kind.json if file.is_json else kind.text) and kind.module.recognises(file):
            return name
    if file.is_json:
        raise Unreadable("is JSON of no tool that can be read; " + _which(file))
    if not file.text.strip():
        raise Unreadable("is empty; " + _which(file))
    raise Unreadable("is neither JSON nor a log or scrape that can be read; " + _which(file))


def _which(file: ToolFile) -> str:
    """Returns what can be read, of the kind that a file is."""
    known = [kind.title for kind in FORMATS.values() if (kind.json if file.is_json else kind.text)]
    return f"give {', '.join(known[:-1])} or {known[-1]}"


def read_tools(paths: Sequence[Path], format_: str | None = None) -> list[ToolReading]:
    """Returns what several files measured, every fault at once; results without counters say what that means.

    Raises:
        InputFaults: as `read_tool`, for all files together.
    """
    readings: list[ToolReading] = []
    faults: list[Fault] = []
    for path in paths:
        try:
            readings.append(read_tool(path, format_))
        except InputFaults as found:
            faults += found.faults
    if faults:
        raise InputFaults(faults)
    return [_told_apart(reading, readings) for reading in readings]


def _told_apart(reading: ToolReading, among: Sequence[ToolReading]) -> ToolReading:
    """Returns a reading in which results without counters are plain where others of their tool have counters.

    A tool that prints counters of one server would have printed them of another. Alone, a result without them
    may be of a version that prints none.
    """
    counting = {other.format for other in among if any(one.counted for one in other.results)}
    if reading.format not in counting:
        return reading
    note = (
        "no speculation counters, which others of its tool here have: taken as a server that does not draft"
    )
    results = [
        one if one.counted or one.drafts is not None else replace(one, drafts=0, notes=(*one.notes, note))
        for one in reading.results
    ]
    return replace(reading, results=results)
