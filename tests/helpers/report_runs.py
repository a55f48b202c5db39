"""Small finished runs for the tests of the pages: one simulated, one written by hand with hostile names."""

from __future__ import annotations

import json
from pathlib import Path

from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.run.results import Row, write_summary
from specfleet.experiments.run.run import Run

LOAD, K = "workload.max_concurrency", "serve.speculative_config.num_speculative_tokens"
FILE = """
name: small
seed: 3
replications: 2
serve:
  model: llama-3.1-8b-instruct
  gpu: h100-sxm
  max_model_len: 4096
  max_num_seqs: 64
  num_gpu_blocks_override: 20000
  speculative_config: {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3,
    max_model_len: 4096}
acceptance: {source: "<script>alert('yaml')</script> \\"quoted\\" & more", by_position: [0.7, 0.5, 0.35],
  concentration: 18}
workload: {input_len: 300, output_len: 60, max_concurrency: 8, num_prompts: 60}
slo: {ttft_ms: 2000, tpot_ms: 60}
sweep:
  axes:
    workload.max_concurrency: [1, 8, 32]
    serve.speculative_config.num_speculative_tokens: [0, 3]
report:
  baseline: {serve.speculative_config.num_speculative_tokens: 0}
  y: [output_throughput, mean_batch]
claim:
  statement: K = 3 pays at concurrency 1
  source: <b>ours</b>
  expect:
    - {figure: output_throughput, where: {workload.max_concurrency: 1,
       serve.speculative_config.num_speculative_tokens: 3},
       over: {serve.speculative_config.num_speculative_tokens: 0}, between: [1.2, 3.0]}
"""
HOSTILE = "<script>alert(1)</script>"
UNICODE = "Qwen\u202e3 \u65e5\u672c\u8a9e \U0001f916 e\u0301 \u2028 &amp; %s {x} ${y}"
LONG = f"{'a-very-long-name-' * 40}end"
QUOTES = """it's "both" <img src=x onerror=alert(2)> </script>"""


def simulated(folder: Path, *overrides: str, text: str = FILE) -> Path:
    """Runs the small experiment, or another, into a folder under `folder` and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.yaml").write_text(text)
    run = Run(folder / "small.yaml", overrides, folder / "out")
    run.execute(run.prepare(resume=False), 1, Reporter(1, quiet=True))
    assert not run.failures
    run.summary()
    return folder / "out"


def row(load: object, line: object, place: int, at: int = 0) -> Row:
    """A row of a summary written by hand."""
    return {
        "point": f"p{place}-{at}",
        LOAD: load,
        "serve.gpu": line,
        "replications": 1,
        "output_throughput": 100.0 * (1 + place) * (1 + at),
        "mean_tpot_ms": 10.0 + place,
        "p99_tpot_ms": 12.0 + place,
        "p99_ttft_ms": 100.0,
        **judged("speedup_output_throughput", 1.0 + 0.1 * place - 0.08 * at),
        **judged("speedup_p99_tpot", 1.0 + 0.1 * place - 0.08 * at),
        "step_weights_ms": 5.0,
        "step_ms": 5.0,
    }


def judged(name: str, ratio: float) -> dict[str, object]:
    """Returns the columns of a ratio known to 0.01, and whether it pays."""
    low, high = ratio - 0.01, ratio + 0.01
    verdict = "pays" if low > 1.02 else "does not" if high < 1.02 else "not settled"
    return {name: ratio, f"{name}_low": low, f"{name}_high": high, f"{name}_verdict": verdict}


def written(folder: Path, lines: tuple[object, ...] = ("a", HOSTILE, QUOTES), loads: int = 3) -> Path:
    """Writes the folder of a finished run with lines of these names, hostile text everywhere."""
    folder.mkdir(parents=True)
    rows = [
        row(2**at, line, place, at) for at in range(loads) for place, line in enumerate(lines)
    ]  # fmt: skip
    write_summary(folder / "summary.csv", rows)
    manifest = {
        "name": HOSTILE,
        "whole": True,
        "specfleet": QUOTES,
        "libraries": {HOSTILE: QUOTES},
        "seeds": [1],
        "overrides": [QUOTES],
        "axes": {LOAD: [2**at for at in range(loads)], "serve.gpu": list(lines)},
        "report": {
            "x": LOAD,
            "lines": "serve.gpu",
            "y": ["output_throughput"],
            "baseline": {"serve.gpu": "a"},
        },
        "points": [str(r["point"]) for r in rows],
        "failures": {HOSTILE: QUOTES},
        "notices": [HOSTILE],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    model = json.dumps(QUOTES)
    (folder / "resolved.yaml").write_text(f"name: x\nserve: {{model: {model}, gpu: a}}\n# {HOSTILE}\n")
    (folder / "experiment.yaml").write_text(f"# {HOSTILE} {QUOTES}\n")
    return folder
