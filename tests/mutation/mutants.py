"""Mutants: the source with one small fault in it, made in the tree that Python parses, lines unchanged."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MUTATED = ("sim", "hardware", "workloads", "experiments/load/rules")
"""Folders whose code is mutated."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq},
    **{ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
DROPS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv)
"""Operators of which either operand may stand alone."""
OTHER_CALL = {"min": "max", "any": "all", "minimum": "maximum", "ceil": "floor"}
OTHER_CALL |= {new: old for old, new in OTHER_CALL.items()}
NOT_MUTATED = ("annotation", "returns", "decorator_list", "type_comment")
"""Fields without behaviour of their own, or whose faults are found on import."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Change = Callable[[], None]


@dataclass(frozen=True, order=True)
class Mutant:
    """One fault.

    Attributes:
        file: of the source, from the root.
        line: of the change.
        number: its place among the mutants of its file.
        function: qualified name of the outermost function around it; empty outside of any.
        what: the change in words.
    """

    file: str
    line: int
    number: int
    function: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} [{self.number}] {self.what}"


@dataclass(frozen=True)
class _Site:
    node: ast.AST
    function: str
    what: str
    apply: Change


def files() -> list[str]:
    """Returns the files whose code is mutated, from the root."""
    found = (path for folder in MUTATED for path in (ROOT / folder).rglob("*.py"))
    return sorted(str(path.relative_to(ROOT)) for path in found)


def mutants_of(source: str, file: str) -> list[Mutant]:
    """Returns every mutant of a file's source."""
    return [
        Mutant(file, getattr(site.node, "lineno", 0), number, site.function, site.what)
        for number, site in enumerate(_sites(ast.parse(source)))
    ]


def mutated(source: str, number: int) -> ast.Module:
    """Returns the tree of a file's source with one of its mutants in it.

    Raises:
        IndexError: there are fewer.
    """
    tree = ast.parse(source)
    [*_sites(tree)][number].apply()
    return ast.fix_missing_locations(tree)


def sample(count: int, seed: int, under: str = "") -> list[Mutant]:
    """Returns so many mutants of all, or of those under a path; the same for the same seed and source."""
    inside = [file for file in files() if file.startswith(under)]
    every = [mutant for file in inside for mutant in mutants_of((ROOT / file).read_text(), file)]
    return random.Random(seed).sample(every, min(count, len(every)))


def _sites(tree: ast.Module) -> Iterator[_Site]:
    """Yields where a tree can be changed, from top to bottom; a change is made by `apply`."""
    yield from _below(tree, "", "")


def _below(node: ast.AST, scope: str, function: str) -> Iterator[_Site]:
    for field, value in ast.iter_fields(node):
        if field in NOT_MUTATED:
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Assert) or _is_for_types(child):
                continue
            within = f"{scope}{child.name}." if isinstance(child, ast.ClassDef | Function) else scope
            inside = function or (within[:-1] if isinstance(child, Function) else "")
            for what, new in _changes(child):
                yield _Site(child, inside, what, _replacing(node, field, child, new))
            yield from _below(child, within, inside)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _replacing(parent: ast.AST, field: str, old: ast.AST, new: ast.AST) -> Change:
    def apply() -> None:
        value = getattr(parent, field)
        fresh = [new if child is old else child for child in value] if isinstance(value, list) else new
        for child in ast.walk(new):
            if "lineno" in child._attributes and not hasattr(child, "lineno"):
                ast.copy_location(child, old)
        setattr(parent, field, fresh)

    return apply


def _said(old: ast.AST, new: ast.AST) -> str:
    return f"{ast.unparse(old)} -> {ast.unparse(new)}".replace("\n", " ")[:160]


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yields what may stand in the place of a node, with the change in words."""
    for new in _others(node):
        yield _said(node, new), new


def _others(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left, ops, comparators):
            for place, op in enumerate(ops):
                changed = [*ops[:place], COMPARISONS[type(op)](), *ops[place + 1 :]]
                yield ast.Compare(left, changed, comparators)
        case ast.BinOp(left, op, right) if type(op) in ARITHMETIC and not _is_text(left):
            yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
            if isinstance(op, DROPS):
                yield from (left, right)
        case ast.AugAssign(target, op, value) if type(op) in ARITHMETIC and not _is_text(value):
            yield ast.AugAssign(target, ARITHMETIC[type(op)](), value)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(float() as value):
            yield ast.Constant(2.0 * value if value else 1.0)
        case ast.Call(ast.Name(name) as called, args, keywords) if name in OTHER_CALL:
            yield ast.Call(ast.Name(OTHER_CALL[name], called.ctx), args, keywords)
        case ast.Call(ast.Attribute(of, name, ctx), args, keywords) if name in OTHER_CALL:
            yield ast.Call(ast.Attribute(of, OTHER_CALL[name], ctx), args, keywords)
        case ast.If(test, body, orelse) if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Expr(ast.Call()):
            yield ast.Pass()
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
