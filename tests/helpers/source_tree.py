"""The product's source as data: its files, who imports whom, classes and functions with their places."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("hardware", "workloads", "sim", "experiments")


@cache
def sources() -> Mapping[str, ast.Module]:
    """Returns the parsed files of the four packages by module, the leading `specfleet.` left out.

    `specfleet/` itself is not among them: it is the door, hands on what the rooms offer, and is asked for
    the version alone.
    """
    found = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(file.read_text())
    return found


@cache
def arrows() -> Mapping[str, frozenset[str]]:
    """Returns module -> modules it imports, wherever the import stands: in a function, for types alone."""
    return {module: frozenset(_imported(tree)) - {module} for module, tree in sources().items()}


def _imported(tree: ast.Module) -> Iterator[str]:
    known = sources()
    for name in (name.removeprefix("specfleet.") for name in _names(tree)):
        if (module := name if name in known else name.rpartition(".")[0]) in known:
            yield module


def _names(tree: ast.Module) -> Iterator[str]:
    """Yields what a file imports, each name with its module before it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def below_the_top(tree: ast.Module) -> set[str]:
    """Returns the first parts below `specfleet` of what a file imports from the product."""
    return {name.split(".")[1] for name in _names(tree) if name.startswith("specfleet.")}


def circles(graph: Mapping[str, frozenset[str]]) -> list[frozenset[str]]:
    """Returns the sets of modules that reach each other (strongly connected components above one)."""
    reached = {module: _reached(graph, module) for module in graph}
    found = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in graph
        if module in reached[module]
    }
    return sorted(found, key=sorted)


def _reached(graph: Mapping[str, frozenset[str]], start: str) -> set[str]:
    seen: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        module = ahead.pop()
        if module not in seen:
            seen.add(module)
            ahead += graph[module]
    return seen


@dataclass(frozen=True)
class Defined:
    """A class or a function.

    Attributes:
        module: where, without `specfleet.`.
        name: with its class, if it has one.
        lines: from its first line to its last.
    """

    module: str
    name: str
    lines: int


def functions() -> Iterator[Defined]:
    """Yields all functions and methods."""
    for module, tree in sources().items():
        for owner in ast.walk(tree):
            for node in ast.iter_child_nodes(owner):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    name = f"{owner.name}.{node.name}" if isinstance(owner, ast.ClassDef) else node.name
                    yield Defined(module, name, (node.end_lineno or node.lineno) - node.lineno + 1)


def classes() -> Mapping[str, list[str]]:
    """Returns the name of a class -> the modules that define one."""
    found = defaultdict(list)
    for module, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module)
    return found
