"""A mutant in a process that has imported everything already: the code of living functions is exchanged."""

from __future__ import annotations

import ast
import functools
import gc
import sys
from collections import defaultdict
from pathlib import Path
from types import CodeType, FunctionType

from mutants import ROOT

Key = tuple[str, int]
"""Qualified name and first line."""


def codes(code: CodeType) -> dict[Key, CodeType]:
    """Returns every code object in another, by name and line; what stands twice is left out."""
    found: dict[Key, CodeType] = {}
    twice: set[Key] = set()
    rest = [code]
    while rest:
        for inner in rest.pop().co_consts:
            if isinstance(inner, CodeType):
                key = (inner.co_qualname, inner.co_firstlineno)
                (twice.add(key) if key in found else found.setdefault(key, inner))
                rest.append(inner)
    return {key: inner for key, inner in found.items() if key not in twice}


class Functions:
    """The functions of the product that live in this process, by the file that they were written in."""

    def __init__(self) -> None:
        self.of: dict[str, list[FunctionType]] = defaultdict(list)
        self._caches = []
        gc.unfreeze()  # who collected the tests may have frozen what it found
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType):
                if name := relative(thing.__code__.co_filename):
                    self.of[name].append(thing)
            elif isinstance(thing, functools._lru_cache_wrapper):
                self._caches.append(thing)

    def exchange(self, file: str, tree: ast.Module) -> bool:
        """Gives the functions of a file the code of another tree with the same functions, and forgets caches.

        Returns:
            Whether any living function changed.
        """
        changed = False
        module = next(f.__code__.co_filename for f in self.of[file]) if self.of[file] else file
        new = codes(compile(tree, module, "exec", dont_inherit=True))
        for function in self.of[file]:
            old = function.__code__
            code = new.get((old.co_qualname, old.co_firstlineno))
            if code is not None and code.co_freevars == old.co_freevars and code != old:
                function.__code__ = code
                changed = True
        for cache in self._caches:
            cache.cache_clear()
        return changed


@functools.cache
def relative(path: str) -> str:
    """Returns a source file's path from the root; empty for any that is not the product's."""
    if "specfleet" not in path and not path.startswith(str(ROOT)):
        return ""
    real = Path(path).resolve()
    if not real.is_relative_to(ROOT) or real.is_relative_to(ROOT / "tests"):
        return ""
    return str(real.relative_to(ROOT))


def on_import(file: str, tree: ast.Module) -> None:
    """Lets the next import of a file get another tree."""
    loader = sys.modules["importlib.machinery"].SourceFileLoader
    original = loader.get_code

    def get_code(self: object, name: str) -> CodeType | None:
        path: str = self.path  # type: ignore[attr-defined]
        if relative(path) == file:
            return compile(tree, path, "exec", dont_inherit=True)
        code: CodeType | None = original(self, name)
        return code

    loader.get_code = get_code
