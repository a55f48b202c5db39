"""Reads YAML 1.2 strictly, and remembers the line of every key.

PyYAML composes the nodes; what they mean is decided here by YAML 1.2's core schema, so that `2.4e12` and
`1e-3` are numbers and `on`, `off`, `yes`, `12:30` and `1_000` are text (PyYAML's own rules are YAML 1.1's).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml

from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults

Value: TypeAlias = "bool | int | float | str | tuple[Value, ...] | dict[str, Value] | None"
"""What YAML can say here; sequences are tuples, because configuration does not change."""

KeyPath: TypeAlias = "tuple[str | int, ...]"
"""Keys and list positions from the top of the file down to a value."""

MAX_NODES = 100_000
"""Values in one file, aliases expanded: a guard against aliases that multiply."""

_TAG = "tag:yaml.org,2002:"
_NULL = re.compile(r"null|Null|NULL|~|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


_COMMENT = re.compile(r"""^((?:[^"'#\n]|(?<=\S)#)*)(?<!\S)#.*$""", re.MULTILINE)
_RARE = r"[^\n -~\u00a0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
_ODD = re.compile(_RARE + r"|[?!]|[|>][-+0-9]*#|^%", re.MULTILINE)
"""What the two parsers may see differently: rare characters, keys and tags with a sign, directives."""
_MOST_DEEP, _MOST_NESTED = 60, 2000
"""Levels of a tree that the fast parser may make; signs of nesting in a text that it is given."""


class _CoreLoader(yaml.SafeLoader):
    """PyYAML's parser with the implicit types of YAML 1.2's core schema only."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same by libyaml, an eighth of the time; where PyYAML was built without it, PyYAML's own."""

    yaml_implicit_resolvers = _CoreLoader.yaml_implicit_resolvers


for _name, _pattern in (("null", _NULL), ("bool", _BOOL), ("int", _INT), ("float", _FLOAT)):
    _CoreLoader.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_pattern.pattern})$"), None)
_FastLoader.yaml_implicit_resolvers = _CoreLoader.yaml_implicit_resolvers


@dataclass(frozen=True)
class Mark:
    """Where a value was written; `line` 0 is the command line."""

    file: str
    line: int


@dataclass(frozen=True)
class Document:
    """A file as plain values, with the place of each.

    Args:
        file: as the user named it.
        data: the top-level mapping.
        marks: the place of every key and list entry; `()` is the top of the file.
        faults: what is wrong with the text; of keys given twice the first counts, other values are null.
    """

    file: str
    data: dict[str, Value]
    marks: dict[KeyPath, Mark] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    def mark(self, path: KeyPath) -> Mark:
        """The place of `path`, or of the nearest thing around it that was written."""
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks.get(path, Mark(self.file, 1))


def read_yaml(path: Path | str) -> Document:
    """The one document of a file.

    Raises InputFaults for a file that is missing, no UTF-8, empty, no YAML, more than one document or no
    mapping. Duplicate keys, self-referring aliases, tags and keys that are not text are faults of the
    document.
    """
    file = str(path)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputFaults([Fault(file, 1, "", "there is no such file; check the path")]) from None
    except OSError as error:
        raise InputFaults([Fault(file, 1, "", f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputFaults([Fault(file, line, "", "not UTF-8 text; save the file as UTF-8")]) from None
    return parse(text, file)


def parse(text: str, file: str) -> Document:
    """The document that `text` holds; as `read_yaml`."""
    root = _compose(text, file)
    if root is None:
        raise InputFaults([Fault(file, 1, "", "the file is empty; an experiment needs serve: and workload:")])
    if not isinstance(root, yaml.MappingNode):
        what = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        message = f"the top level is {what}; write `key: value` lines, as in `serve:` and `workload:`"
        raise InputFaults([Fault(file, _line(root), "", message)])
    walk = _Walk(file)
    data = walk.mapping(root, ())
    return Document(file, data, walk.marks, tuple(walk.faults))


def parse_value(text: str) -> Value:
    """The value of a `key=value` argument. ValueError says what is wrong with it."""
    try:
        root = _compose(text, COMMAND_LINE)
        walk = _Walk(COMMAND_LINE)
        value = None if root is None else walk.value(root, ())
    except InputFaults as error:
        raise ValueError(error.faults[0].message) from None
    if walk.faults:
        raise ValueError(walk.faults[0].message)
    return value


def _line(node: yaml.Node) -> int:
    """Line of a node, 1 for the first."""
    return int(node.start_mark.line) + 1


def _compose_plain(text: str) -> yaml.Node | None:
    """The node tree of an ordinary text, by libyaml; None where there is anything odd about it."""
    if _ODD.search(_COMMENT.sub(r"\1", text)) or sum(map(text.count, "[{")) + text.count("- ") > _MOST_NESTED:
        return None
    loader = _FastLoader(text)
    try:
        root = loader.get_single_node()
    except yaml.YAMLError:
        return None
    finally:
        loader.dispose()
    says_nothing = isinstance(root, yaml.ScalarNode) and not root.value  # which has another line there
    return None if says_nothing or _depth(root) > _MOST_DEEP else root


def _depth(root: yaml.Node | None) -> int:
    """Levels of a tree, counted up to one more than may be."""
    level, depth = [root], 0
    while level and depth <= _MOST_DEEP:
        depth += 1
        entries = [node.value for node in level if isinstance(node, yaml.CollectionNode)]
        below = [entry if isinstance(entry, tuple) else (entry,) for each in entries for entry in each]
        level = [*{id(node): node for entry in below for node in entry}.values()]  # of aliases one
    return depth


def _compose(text: str, file: str) -> yaml.Node | None:
    """The node tree of a text with one document, None when it holds nothing.

    What libyaml takes without a word PyYAML takes alike (`tests/experiments/test_yaml.py`); whatever else is
    asked of PyYAML, whose complaints say more.
    """
    if (plain := _compose_plain(text)) is not None:
        return plain
    try:
        loader = _CoreLoader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        message = f"the character {chr(int(error.character))!r} is not allowed in YAML; remove it"
        raise InputFaults([Fault(file, line, "", message)]) from None
    except yaml.MarkedYAMLError as error:
        raise InputFaults([_syntax_fault(error, file)]) from None
    except RecursionError:
        raise InputFaults([Fault(file, 1, "", "nested too deeply; write it flatter")]) from None


def _syntax_fault(error: yaml.MarkedYAMLError, file: str) -> Fault:
    """PyYAML's complaint in the user's words."""
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    problem = error.problem or "not YAML"
    if r"'\t'" in problem:
        return Fault(file, line, "", "a tab between values; YAML wants spaces")
    if "another document" in problem:
        return Fault(file, line, "", "a second document starts here; one file is one experiment")
    if "undefined alias" in problem:
        name = problem.split("'")[1] if "'" in problem else "?"
        return Fault(file, line, "", f"the alias *{name} has no anchor; define it above with &{name}")
    context = f" {error.context}" if error.context else ""
    return Fault(file, line, "", f"not YAML{context}: {problem}; check quotes, brackets and indentation")


class _Walk:
    """Turns nodes into values; collects marks, and every fault instead of the first."""

    def __init__(self, file: str) -> None:
        """`file` as the user named it."""
        self.marks: dict[KeyPath, Mark] = {(): Mark(file, 1)}
        self.faults: list[Fault] = []
        self._file = file
        self._inside: set[int] = set()
        self._count = 0

    def _fault(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        """Notes a fault at a node."""
        self.faults.append(Fault(self._file, _line(node), dotted(path), message))

    def value(self, node: yaml.Node, path: KeyPath) -> Value:
        """The value of any node; None where it is at fault."""
        self._count += 1
        if self._count > MAX_NODES:
            if self._count == MAX_NODES + 1:
                self._fault(node, (), f"more than {MAX_NODES} values; the aliases multiply too much")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._inside:
            line = self.marks[path].line
            self.faults.append(
                Fault(self._file, line, dotted(path), "an alias contains itself; write the value out")
            )
            return None
        self._inside.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self.mapping(node, path)
            return self._sequence(node, path)
        finally:
            self._inside.discard(id(node))

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Value]:
        """A mapping; of a key given twice the first value stays."""
        self._inside.add(id(node))
        self._expect_tag(node, path, "map")
        found: dict[str, Value] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is None:
                continue
            here = (*path, key)
            if key in found:
                first = self.marks[here].line
                self._fault(key_node, here, f"given twice, first in line {first}; keep one")
                continue
            self.marks[here] = Mark(self._file, _line(key_node))
            found[key] = self.value(value_node, here)
        return found

    def _key(self, node: yaml.Node, path: KeyPath) -> str | None:
        """A key as text; None, and a fault, for any other."""
        if isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "str":
            key = self._scalar(node, path)
            return None if key is None else str(key)
        text = f"the key {node.value}" if isinstance(node, yaml.ScalarNode) else "a key"
        self._fault(node, path, f"{text} is not text; put it in quotes")
        return None

    def _sequence(self, node: yaml.Node, path: KeyPath) -> tuple[Value, ...]:
        """A list, as a tuple."""
        self._expect_tag(node, path, "seq")
        for i, child in enumerate(node.value):
            self.marks[(*path, i)] = Mark(self._file, _line(child))
        return tuple(self.value(child, (*path, i)) for i, child in enumerate(node.value))

    def _expect_tag(self, node: yaml.Node, path: KeyPath, kind: str) -> None:
        """A fault for a collection with a tag of its own."""
        if node.tag != _TAG + kind:
            self._fault(node, path, f"the tag {node.tag} is not supported; remove it")

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Value:
        """A scalar as YAML 1.2's core schema reads it."""
        tag, text = node.tag.removeprefix(_TAG), node.value
        if tag == "str":
            try:
                return whole(text)
            except ValueError as error:
                self._fault(node, path, str(error))
                return None
        if tag == "null" and _NULL.fullmatch(text):
            return None
        if tag == "bool" and _BOOL.fullmatch(text):
            return bool(text.lower() == "true")
        if (tag == "int" and _INT.fullmatch(text)) or (tag == "float" and _FLOAT.fullmatch(text)):
            return self._number(node, path, tag)
        self._fault(node, path, f"the tag {node.tag} is not supported here; remove it")
        return None

    def _number(self, node: yaml.ScalarNode, path: KeyPath, tag: str) -> Value:
        """An int or a float; a fault for one no double can hold."""
        text = node.value
        if tag == "int":
            if len(text) > 40:
                self._fault(node, path, "a number of more than 40 digits; write a smaller one")
                return None
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
        number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        if math.isinf(number) and "inf" not in text.lower():
            self._fault(node, path, f"{text} is too large for a number; write .inf for no limit")
            return None
        return number


def whole(text: str) -> str:
    """A text with escaped surrogate pairs, JSON's way to write some characters, joined to characters.

    ValueError for half a pair, and for a NUL, at which every name and path ends.
    """
    if "\0" in text:
        raise ValueError("holds a NUL character; remove it")
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError("holds half of a surrogate pair; write the character itself") from None


def dotted(path: KeyPath) -> str:
    """A path as users write it: `serve.model`, `acceptance.by_position[2]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def dumper_resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """For a dumper: what is no text to YAML 1.1 (PyYAML's own rules) or to YAML 1.2."""
    both = {first: list(rules) for first, rules in yaml.SafeDumper.yaml_implicit_resolvers.items()}
    for first, rules in _CoreLoader.yaml_implicit_resolvers.items():
        both.setdefault(first, []).extend(rules)
    return both
