"""On the path of every process that a test starts: there, too, the product is imported with the mutant."""

import os
import sys
from pathlib import Path

if planted := os.environ.get("SPECFLEET_MUTANT"):
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import importlib.machinery  # noqa: F401

    from mutants import ROOT, mutated
    from swap import on_import

    file, _, number = planted.rpartition(":")
    on_import(file, mutated((ROOT / file).read_text(), int(number)))
    del sys.path[0]
