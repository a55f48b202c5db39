"""`vllm serve`'s own reading of its arguments: spellings, shortened names, dotted keys, config files.

Python's argparse does what it does in vLLM; what vLLM adds before it (names with underscores, `-O3`, dotted
keys, `--config`) is here. Rules of vLLM 0.33.0.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from specfleet.experiments.flags import every
from specfleet.experiments.flags.faults import LineFault, together
from specfleet.experiments.flags.objects import FIELDS, checked
from specfleet.experiments.flags.table import Flag, flags
from specfleet.experiments.flags.values import dotted, reader


@dataclass(frozen=True)
class Parsed:
    """A command line, read.

    Attributes:
        values: every flag's value, by name; the default where it was not given.
        given: names that were given.
        warnings: what the engine does with the line without a word of its own.
    """

    values: dict[str, Any]
    given: frozenset[str]
    warnings: tuple[str, ...]

    @property
    def model(self) -> str | None:
        """The model served; None where none was named."""
        if self.values.get("model_tag") is not None:
            return str(self.values["model_tag"])
        return str(self.values["model"]) if "model" in self.given else None


def parse(words: Sequence[str], folder: Path | None = None) -> Parsed:
    """The arguments of `vllm`, `serve` first; arguments as `parse_all`.

    Raises:
        LineFault: what vLLM would refuse, with all else that is wrong beside it.
    """
    parsed, faults = parse_all(words, folder)
    if faults:
        raise together(faults)
    return parsed


def parse_all(words: Sequence[str], folder: Path | None = None) -> tuple[Parsed, list[LineFault]]:
    """The arguments of `vllm`, `serve` first, and what vLLM would refuse of them.

    Args:
        words: as the shell gives them.
        folder: where the path of `--config` is seen from; None is the working folder.

    Raises:
        LineFault: what leaves nothing to be read: a file of flags, or an option that is none.
    """
    warnings: list[str] = []
    words = _model_first(list(words))
    if "--config" in words:
        words = _with_config(words, folder or Path(), warnings)
    if any(word.startswith("--config=") for word in words):
        warnings.append("--config=FILE is read past by vLLM: the file is not used; write --config FILE")
    plain = _joined(_plain_names(words[1:]), warnings)
    said, faults = every.parsed(_parser(), plain, _spellings, _unknown)
    values = vars(said)
    for name in values.keys() & FIELDS.keys():
        if isinstance(values[name], dict):
            try:
                values[name] = checked(name, values[name])
            except LineFault as fault:
                faults.append(fault)
    given = frozenset(values)
    each = {name: values.get(name, flag.default) for name, flag in flags().items()}
    warnings += _suffixes(plain)
    return Parsed(each, given, tuple(dict.fromkeys(warnings))), faults


def _spellings(name: str) -> tuple[str, ...]:
    """The option strings of a flag."""
    flag = flags().get(name)
    return (flag.option, *flag.spellings, *flag.off) if flag is not None else ("--" + name.replace("_", "-"),)


def _model_first(words: list[str]) -> list[str]:
    """`--model X` as the positional argument that vLLM makes of it."""
    at = next((i for i, word in enumerate(words) if re.match(r"--model(=.+|$)", word)), None)
    if at is None:
        return words
    if words[at] != "--model":
        return [words[0], words[at].removeprefix("--model="), *words[1:at], *words[at + 1 :]]
    if at + 1 == len(words) or words[at + 1].startswith("-"):
        raise LineFault("missing_value", "model", "needs a value; give the model's name")
    return [words[0], words[at + 1], *words[1:at], *words[at + 2 :]]


def _with_config(words: list[str], folder: Path, warnings: list[str]) -> list[str]:
    """The words with those of the config file before the user's own, so that the command line wins."""
    if words.count("--config") > 1:
        raise LineFault("config", "config", "is given twice; vLLM reads one file")
    at = words.index("--config")
    if at + 1 == len(words):
        raise LineFault("missing_value", "config", "needs a value; give the path of a YAML file")
    path = words[at + 1]
    if path.rpartition(".")[2] not in ("yaml", "yml"):
        raise LineFault("config", "config", f"{path} must end in .yaml or .yml; rename it")
    values = _config_values(folder / path)
    inside = list(_config_words(values, path, warnings))
    model_first = len(words) > 1 and not words[1].startswith("-")
    if not model_first and "--model" not in inside:
        raise LineFault("missing_model", "model", f"is neither on the command line nor in {path}; add it")
    head = 2 if model_first else 1
    return [*words[:head], *inside, *words[head:at], *words[at + 2 :]]


def _config_values(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise LineFault("config", "config", f"{file}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise LineFault("config", "config", f"{file} is no YAML: {error}") from None
    if not isinstance(values, dict):
        raise LineFault("config", "config", f"{file} must be a mapping of flags to values")
    return {str(key): value for key, value in values.items()}


def _config_words(values: dict[str, Any], path: str, warnings: list[str]) -> Iterator[str]:
    """A config file as the words that vLLM makes of it."""
    for key, value in values.items():
        if value is False:
            warnings.append(
                f"{path}: {key}: false is read past by vLLM: the default stays; write "
                f"no-{key.replace('_', '-')}: true"
            )
        elif isinstance(value, bool):
            yield f"--{key}"
        elif isinstance(value, list):
            yield from ([f"--{key}", *map(str, value)] if value else ())
        elif isinstance(value, dict):
            yield from (f"--{key}", json.dumps(value))
        else:
            yield from (f"--{key}", str(value))


def _plain_names(words: Sequence[str]) -> list[str]:
    """Flags with dashes, whatever they were written with, and `-O3` in its long form."""
    found: list[str] = []
    for i, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            head, dot, rest = name.partition(".")
            found.append(head.replace("_", "-") + dot + rest + equals + value)
        elif word.startswith("-O") and word != "-O":
            found += ["--optimization-level", word[3:] if word[2] == "=" else word[2:]]
        elif word == "-O" and words[i + 1 : i + 2] and words[i + 1] in ("0", "1", "2", "3"):
            found.append("--optimization-level")
        else:
            found.append(word)
    return found


def _joined(words: list[str], warnings: list[str]) -> list[str]:
    """Dotted keys put together to one JSON text a flag, at the end: there they replace what was whole."""
    whole: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    rest = iter(words)
    for word in rest:
        name, equals, text = word.partition("=")
        if not (word.startswith("-") and "." in name) or re.fullmatch(r"-\.?\d.*", word):
            whole.append(word)
            continue
        if not equals:
            text = next(rest, "")
        value = text.split(",") if name.endswith("+") else dotted(text)
        flag, *keys = name.removesuffix("+").split(".")
        nested: Any = value
        for key in reversed(keys):
            nested = {key: nested}
        _merge(objects.setdefault(flag, {}), nested)
    for flag, value in objects.items():
        if any(word.partition("=")[0] == flag for word in whole):
            warnings.append(
                f"{flag} is given whole and by dotted keys: the dotted keys replace the whole, they are not "
                "merged into it"
            )
        whole += [flag, json.dumps(value)]
    return whole


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        there = into.get(key)
        if isinstance(there, dict) and isinstance(value, dict):
            _merge(there, value)
        elif isinstance(there, list) and isinstance(value, list):
            there += value
        else:
            into[key] = value


def _suffixes(words: Sequence[str]) -> Iterator[str]:
    """Sizes whose suffix means thousands where a binary one may have been meant."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        text = value if equals else words[i + 1] if i + 1 < len(words) else ""
        if name.startswith("--max-model-len") and (match := re.fullmatch(r"(\d+)k", text)):
            yield f"{name} {text} is {int(match[1]) * 1000}; {match[1]}K is {int(match[1]) * 1024}"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in place of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Sorts argparse's complaint."""
        match = re.match(r"argument ([^:]+): (.*)", message, re.DOTALL)
        name, said = (match[1], match[2]) if match else ("", message)
        name = name.split("/")[-1].lstrip("-").replace("-", "_")
        if message.startswith("ambiguous option"):
            shown = re.sub(
                r"ambiguous option: (\S+) could match (.*)", r"\1 fits \2; write one of them", message
            )
            raise LineFault("ambiguous", "", shown, option=message.split()[2])
        if "ignored explicit argument" in said:
            off = " or ".join(flags()[name].off) if name in flags() else ""
            raise LineFault(
                "takes_no_value", name, f"takes no value{'; to switch it off write ' + off if off else ''}"
            )
        if "invalid choice" in said:
            raise LineFault("not_a_choice", name, said.replace("invalid choice: ", "no such choice: "))
        if said.startswith("expected"):
            raise LineFault("missing_value", name, "needs a value; add it")
        if "JSON" in said:
            raise LineFault("bad_json", name, said)
        raise LineFault("wrong_type", name, said)


class _Set(argparse.Action):
    """A switch: on, or off under one of its other spellings."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, option_string not in flags()[self.dest].off)


@functools.cache
def _parser() -> _Parser:
    """vLLM's parser, made from the table."""
    parser = _Parser(prog="vllm serve", add_help=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("model_tag", nargs="?", default=argparse.SUPPRESS)
    for flag in flags().values():
        if flag.name not in ("model_tag", "config"):
            _add(parser, flag)
    parser.add_argument("--config", dest="config")
    return parser


def _add(parser: _Parser, flag: Flag) -> None:
    options = [*flag.spellings, flag.option]
    if flag.kind == "switch":
        parser.add_argument(*options, *flag.off, dest=flag.name, action=_Set, nargs=0)
        return
    more: dict[str, Any] = {"type": reader(flag.kind)}
    if flag.several:
        more["nargs"] = flag.several
    if flag.several == "?":
        more["const"] = True
    if flag.choices:
        more["choices"] = flag.choices
    parser.add_argument(*options, dest=flag.name, **more)


def _unknown(word: str) -> str:
    """What to say of a flag that there is not."""
    from difflib import get_close_matches

    name = word.split("=")[0].split(".")[0]
    if not name.startswith("-"):
        return "is no flag; the model is the one argument without dashes, and on/off flags take no value"
    if gone := GONE.get(name.lstrip("-").replace("_", "-")):
        return f"is gone in this version; {gone}"
    near = get_close_matches(name, [o for f in flags().values() for o in (f.option, *f.spellings)], n=1)
    return f"no such flag in this version{'; did you mean ' + near[0] + '?' if near else '; remove it'}"


GONE = {
    "swap-space": "remove it",
    "use-v2-block-manager": "remove it",
    "num-scheduler-steps": "remove it; steps are scheduled one by one",
    "rope-scaling": "write --hf-overrides '{\"rope_parameters\": {...}}'",
    "rope-theta": "write --hf-overrides '{\"rope_parameters\": {...}}'",
    "cuda-graph-sizes": "write --cudagraph-capture-sizes",
    "guided-decoding-backend": "write --structured-outputs-config.backend",
    "task": "write --runner",
    "speculative-model": "write --spec-model",
    "num-speculative-tokens": "write --spec-tokens",
    "speculative-draft-tensor-parallel-size": "write --speculative-config.draft_tensor_parallel_size",
    "enable-reasoning": "remove it; --reasoning-parser is enough",
    "disable-frontend-multiprocessing": "remove it",
    "preemption-mode": "remove it",
    "device": "remove it",
    "max-seq-len-to-capture": "write --max-cudagraph-capture-size",
}
"""Flags of older versions, and what takes their place."""
