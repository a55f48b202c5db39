"""A server's command among other text: from what a user pasted to the words of one command.

Taken are shell text with continuations, comments and variables that it sets, `VAR=value` and wrappers before
the command, containers with or without the image's entry point, `python -m ...`, and the `command:` and
`args:` of a manifest.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

import yaml

from specfleet.experiments.flags.faults import LineFault
from specfleet.experiments.flags.shell import Shell

VLLM, SGLANG, TRTLLM, BENCH, SGLANG_BENCH = "vllm", "sglang", "trtllm", "vllm bench", "sglang bench"
BENCHES = (BENCH, SGLANG_BENCH)

_MODULES = {
    "vllm.entrypoints.openai.api_server": VLLM,
    "vllm.entrypoints.api_server": VLLM,
    "vllm.entrypoints.cli.main": VLLM,
    "sglang.launch_server": SGLANG,
    "sglang.bench_serving": SGLANG_BENCH,
}
_IMAGE = re.compile(r"(?:[\w.-]+(?::\d+)?/)?(?:[\w.-]+/)*(vllm|sglang)[\w.-]*(?::[\w.+-]+)?(?:@\S+)?")
_CONTAINERS = ("docker", "podman", "nerdctl")
_END = {"&&", "||", ";", "|", "&", ">", ">>", "2>", "2>&1", "&>", "<", ")"}
_QUOTES = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u00a0": " ", "\r": ""})
"""What web pages make of quotes and blanks."""


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        engine: `vllm`, `sglang`, `trtllm`, `vllm bench` or `sglang bench`.
        words: its arguments; of a vLLM server with `serve` before them, written or meant.
        environment: variables set before it.
        notes: what was read otherwise than a shell would read it.
        files: what the text writes to files with `cat > FILE << EOF`, by their names.
        loops: variables of the loops in the text, and what they go through.
    """

    engine: str
    words: tuple[str, ...]
    environment: dict[str, str]
    notes: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    loops: dict[str, list[str]] = field(default_factory=dict)


def commands(text: str) -> list[Command]:
    """The servers and benchmarks that a text starts.

    Raises:
        LineFault: the text has an open quote, or starts none of them.
    """
    text, files = _written(text.translate(_QUOTES))
    text, bare = _json_quoted(text)
    shell = Shell()
    found = [command for words in _lines(text, shell) if (command := _command(words)) is not None]
    found = found or [
        c for line in _manifest(text) for words in _lines(line, Shell()) if (c := _command(words))
    ]
    if not found:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        said = f"the text begins {first[:60]!r}" if first else "the text is empty"
        known = "`vllm serve MODEL ...`, `python -m sglang.launch_server ...` or `trtllm-serve MODEL ...`"
        message = f"no {known} in it; {said}"
        raise LineFault("no_command", "", message)
    if bare:
        notes = tuple(
            f"{value} stands without quotes, which a shell strips of its own; '...' keeps them"
            for value in bare
        )
        found[0] = replace(found[0], notes=notes)
    return [replace(command, files=files, loops=shell.loops) for command in found]


def _written(text: str) -> tuple[str, dict[str, str]]:
    """The text without what it writes to files with `cat`, and that by file name."""
    files: dict[str, str] = {}
    begins = (
        r"^[ \t]*cat[ \t]+(?:>[ \t]*(\S+)[ \t]+<<|<<)-?[ \t]*['\"]?(\w+)['\"]?(?:[ \t]*>[ \t]*(\S+))?[ \t]*\n"
    )
    pattern = re.compile(begins + r"(.*?)^[ \t]*\2[ \t]*$\n?", re.MULTILINE | re.DOTALL)

    def kept(found: re.Match[str]) -> str:
        files[(found[1] or found[3] or "").strip("'\"")] = found[4]
        return ""

    return pattern.sub(kept, text), files


def _json_quoted(text: str) -> tuple[str, list[str]]:
    """The text with its bare JSON objects in quotes, as they were before another shell, and those objects.

    A line that went through a shell, or was typed without one, has `{"method": ...}` where a shell needs
    quotes around it; taken apart as shell text it would lose those within.
    """
    whole, bare, at, decoder = "", [], 0, json.JSONDecoder()
    for found in re.finditer(r"(?<=[\s=])\{(?=\s*\")", text):
        if found.start() < at or _within_quotes(text[at : found.start()]):
            continue
        try:
            _, end = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            continue
        if "'" in (value := text[found.start() : end]):
            continue
        whole += text[at : found.start()] + f"'{value}'"
        bare.append(value)
        at = end
    return whole + text[at:], bare


def _within_quotes(before: str) -> bool:
    """Whether a text ends inside shell quotes."""
    try:
        shlex.split(before, comments=True)
    except ValueError:
        return True
    return False


def _lines(text: str, shell: Shell) -> Iterator[list[str]]:
    """The words of each command of a shell text."""
    words: list[str] = []
    for part in shell.parts(text):
        try:
            split = shlex.split(part)
        except ValueError as error:
            if not re.search("vllm|sglang|trtllm", part):
                continue
            raise LineFault("open_quote", "", f"{str(error).lower()}; close it") from None
        for word in split:
            if word in _END:
                yield words
                words = []
            elif word.endswith(";"):
                yield [*words, word[:-1]]
                words = []
            else:
                words.append(word)
        yield words
        words = []


def _command(words: list[str]) -> Command | None:
    """The command of a line, None where it starts nothing we know."""
    environment: dict[str, str] = {}
    for i, word in enumerate(words):
        if match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word, re.DOTALL):
            environment[match[1]] = match[2]
        if (found := _starts(words, i)) is not None:
            engine, rest = found
            return Command(engine, tuple(rest), environment)
    return None


def _starts(words: list[str], i: int) -> tuple[str, list[str]] | None:
    """The engine that a word starts, and its arguments."""
    name, rest = PurePath(words[i]).name, words[i + 1 :]
    if name == "vllm" and rest[:1] == ["serve"]:
        return VLLM, rest
    if name == "benchmark_serving.py" or (name == "vllm" and rest[:2] == ["bench", "serve"]):
        return BENCH, rest[2:] if name == "vllm" else rest
    if words[i] == "-m" and rest and rest[0] in _MODULES:
        engine, after = _MODULES[rest[0]], rest[1:]
        return engine, (["serve", *after] if engine == VLLM and after[:1] != ["serve"] else after)
    if name == "sglang" and rest[:1] == ["serve"]:
        return SGLANG, rest[1:]
    if name == "trtllm-serve":
        return TRTLLM, rest[1:] if rest[:1] == ["serve"] else rest
    return _in_container(words, i)


def _in_container(words: list[str], i: int) -> tuple[str, list[str]] | None:
    """An image whose own entry point is the server: what follows it are the server's arguments."""
    image, rest = _IMAGE.fullmatch(words[i]), words[i + 1 :]
    if image is None or not any(container in words[:i] for container in _CONTAINERS):
        return None
    if any(_starts(words, j) for j in range(i + 1, len(words))):
        return None
    if image[1] == VLLM and rest:
        return VLLM, rest if rest[0] == "serve" else ["serve", *rest]
    return None


def _manifest(text: str) -> Iterator[str]:
    """The commands of a Kubernetes or Compose manifest, as shell text."""
    if not re.search(r"^\s*-?\s*(command|args)\s*:", text, re.MULTILINE):
        return
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        return
    for document in documents:
        for block in _blocks(document):
            yield from _started(block)


def _blocks(value: Any) -> Iterator[dict[str, Any]]:
    """Mappings with a command, wherever they stand."""
    if isinstance(value, dict):
        if "command" in value or "args" in value:
            yield value
        for child in value.values():
            yield from _blocks(child)
    elif isinstance(value, list):
        for child in value:
            yield from _blocks(child)


def _started(block: dict[str, Any]) -> Iterator[str]:
    """What a container starts: its command, or its arguments behind the image's entry point."""
    words: list[str] = []
    for key in ("command", "args"):
        given = block.get(key) or []
        words += shlex.split(given) if isinstance(given, str) else [str(word) for word in given]
    if "-c" in words[:-1] or "-lc" in words[:-1]:
        yield words[-1]
        return
    yield shlex.join(words)
    if isinstance(block.get("image"), str):
        yield shlex.join(["docker", "run", block["image"], *words])
