"""Whether another environment gives the same figures: counts alike, times to 1e-12.

    python tests/fidelity/everywhere.py --out here.json           # in one environment
    python tests/fidelity/everywhere.py --against here.json       # in another
    python tests/fidelity/everywhere.py --oldest                  # the lowest versions declared, for pip

Another environment is another Python, other versions of what Specfleet depends on, or other instructions of
the processor (`NPY_DISABLE_CPU_FEATURES`). Exit 1 and a list if a figure differs.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
CLOSE = 1e-12
"""Relative difference of two times that counts as none."""

HEAD = """
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  max_model_len: 4096
  speculative_config: {model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}
acceptance: {conditional_acceptance: 0.7, concentration: 18}
"""
FILES = {
    "closed": "workload: {input_len: 200, output_len: 40, num_prompts: 60}\n"
    "sweep: {axes: {workload.max_concurrency: [2, 16], "
    "serve.speculative_config.num_speculative_tokens: [0, 3]}}\n",
    "open": "workload: {input: {lognormal: {mu: 5.0, sigma: 0.6, max: 900}}, output: {lognormal: {mu: 4.0, "
    "sigma: 0.7, max: 300}}, num_prompts: 300, request_rate: 20, burstiness: 0.5}\nreplications: 2\n",
    "short": "workload: {input_len: 400, output_len: 120, num_prompts: 40, max_concurrency: 24}\n"
    "sweep: {axes: {serve.num_gpu_blocks_override: [300], "
    "serve.draft_policy: [{goodput: {}}, {oracle: {}}]}}\n",
}
"""Small experiments: drafts, spread requests in an open loop, preemption with policies."""

Figures = dict[str, float | str]


def figures() -> Figures:
    """Returns every figure of the small experiments, by experiment, point and name."""
    import specfleet as sf

    found: Figures = {}
    for name, text in FILES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.yaml"
            path.write_text(f"name: {name}\n{HEAD}{text}")
            done = sf.load(path).run(jobs=1)
            rows = done.summary.to_dict("records")
        if done.failures:
            raise SystemExit(f"{name}: {done.failures}")
        for row, values in enumerate(rows):
            for key, value in values.items():
                plain = value.item() if hasattr(value, "item") else value
                shown = plain if isinstance(plain, int | float) else str(plain)
                found[f"{name}[{row}].{key}"] = str(shown) if isinstance(shown, bool) else shown
    return found


def differences(here: Figures, there: Figures) -> Iterator[str]:
    """Yields what differs: whole numbers and words at all, others by more than `CLOSE`."""
    for key in sorted(here.keys() | there.keys()):
        a, b = here.get(key), there.get(key)
        if isinstance(a, float) and isinstance(b, float):
            same = a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=CLOSE)
        else:
            same = a == b
        if not same:
            yield f"{key}: {a!r} here, {b!r} there"


def oldest() -> list[str]:
    """Returns what `pyproject.toml` declares as the lowest versions, as exact ones."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [line.replace(">=", "==") for line in declared]


def main() -> int:
    """Runs what the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path)
    what.add_argument("--against", type=Path)
    what.add_argument("--oldest", action="store_true")
    asked = parser.parse_args()
    if asked.oldest:
        print("\n".join(oldest()))
        return 0
    found = figures()
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1))
        print(f"{len(found)} figures with Python {platform.python_version()}")
        return 0
    wrong = list(differences(found, json.loads(asked.against.read_text())))
    print("\n".join(wrong) or f"{len(found)} figures alike with Python {platform.python_version()}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
