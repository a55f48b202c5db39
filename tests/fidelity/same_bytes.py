"""Whether a change of the code changes a figure: digests of everything the product says, before and after.

    python tests/fidelity/same_bytes.py --out before.json         # at the commit before
    python tests/fidelity/same_bytes.py --against before.json     # after

What is compared: `summary.csv` of every preset that can be run, the plan of every preset that has one, the
rows that `validate --json` prints for each table of measured points, and what recorded decisions of vLLM's
scheduler say of ours. Exit 1 and a list if anything differs. `--only TEXT` takes the items that contain the
text, `--jobs N` runs so many at once, `--command` names another way to start the product: a checkout that is
not installed, or an older one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT / os.environ.get("SPECFLEET_SHARED", "../shared")
PRESETS = ROOT / "experiments" / "presets"
TABLES = ("h100_vllm_specdec.csv", "served_tpot.csv", "serving_points.csv")
NOT_FIGURES = ("seconds", "elapsed_s", "wall_s", "version")
"""Keys of a result that say how long it took or who made it."""

Digest = Callable[[list[str]], str]


def digest(data: bytes) -> str:
    """Returns a short name of some bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


def call(command: list[str], *arguments: str) -> bytes:
    """Runs the product; returns what it printed."""
    done = subprocess.run([*command, *arguments], capture_output=True, cwd=ROOT, check=False)
    if done.returncode > 1:  # 1: the rows were scored and one of them is missed
        raise RuntimeError(f"{' '.join(arguments)}: exit {done.returncode}\n{done.stderr.decode()[-2000:]}")
    return done.stdout


def summary_of(preset: Path, command: list[str]) -> str:
    """Returns the digest of a preset's summary."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        call(command, "run", str(preset), "--no-plots", "--jobs", "1", "--out", str(out))
        return digest((out / "summary.csv").read_bytes())


def plan_of(preset: Path, command: list[str]) -> str:
    """Returns the digest of a preset's plan, without what it says of its own time."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "plan"
        call(command, "plan", str(preset), "--no-plots", "--jobs", "1", "--out", str(out))
        plan = json.loads((out / "plan.json").read_text())
        return digest(json.dumps(without_times(plan)).encode() + (out / "rollout.md").read_bytes())


def rows_of(table: Path, command: list[str]) -> str:
    """Returns the digest of the rows that `validate --json` prints for a table of measured points."""
    return digest(
        json.dumps(without_times(json.loads(call(command, "validate", str(table), "--json")))).encode()
    )


def replayed(command: list[str]) -> str:
    """Returns the digest of what the recorded decisions of vLLM's scheduler say of ours."""
    script, golden = ROOT / "tests/conformance/replay.py", SHARED / "golden/vllm_scheduler"
    return digest(call([sys.executable, str(script)], str(golden), "--strict", "--crowd", "listed"))


def without_times(value: object) -> object:
    """Returns a JSON value without the keys that are no figures."""
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if key not in NOT_FIGURES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def items() -> dict[str, Digest]:
    """Returns everything that is compared, by name."""
    found: dict[str, Digest] = {}
    for preset in sorted(PRESETS.rglob("*.yaml")):
        text = preset.read_text()
        if preset.parent.name == "acceptance" or "\nserve:" not in text:
            continue
        name = preset.relative_to(PRESETS).as_posix()
        if "\nplan:" in text:
            found[f"plan {name}"] = partial(plan_of, preset)
        else:
            found[f"summary.csv {name}"] = partial(summary_of, preset)
    if SHARED.is_dir():
        found |= {f"validate {table}": partial(rows_of, SHARED / "validation" / table) for table in TABLES}
        found["replay"] = replayed
    return found


def main(arguments: list[str] | None = None) -> int:
    """Prints a digest an item; returns 1 if one differs from the file it is held against."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the digests to this file")
    parser.add_argument("--against", type=Path, help="digests to compare with")
    parser.add_argument("--only", default="", help="items whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="items at once")
    parser.add_argument(
        "--command", default=f"{sys.executable} -m specfleet", help="how to start the product"
    )
    options = parser.parse_args(arguments)
    command = shlex.split(options.command)
    chosen = {name: make for name, make in items().items() if options.only in name}
    found: dict[str, str] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, value in zip(chosen, pool.map(lambda make: make(command), chosen.values()), strict=True):
            found[name] = value
            print(f"{value}  {name}", flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    if options.against is None:
        return 0
    before = {
        name: value for name, value in json.loads(options.against.read_text()).items() if options.only in name
    }
    differing = sorted(name for name in before.keys() | found.keys() if before.get(name) != found.get(name))
    print("\n".join(["differs:", *differing]) if differing else f"{len(found)} items, the same bytes")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
