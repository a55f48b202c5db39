"""Runs the Python cells of a page one after the other, as a notebook does: `python docs_cells.py`.

A line on stdin is a cell's source as JSON; the answer is a line with what it printed, the value of a last
expression included, and the traceback if it failed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
import traceback


def run(source: str, space: dict[str, object]) -> tuple[str, str | None]:
    """Returns what a cell prints, and its traceback or None."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            tree = ast.parse(source)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "<cell>", "exec"), space)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), space)
                if value is not None:
                    print(repr(value))
        except Exception:
            return printed.getvalue(), traceback.format_exc()
    return printed.getvalue(), None


def main() -> None:
    """Answers until there are no more cells."""
    space: dict[str, object] = {"__name__": "__main__"}
    sys.path.insert(0, "")
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line), space)), flush=True)


if __name__ == "__main__":
    main()
