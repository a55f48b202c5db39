"""Results of serving benchmarks that keep their requests as parallel lists, one object a run.

`vllm bench serve --save-result --save-detailed` writes `input_lens`, `output_lens` and `start_times`, seconds
of a clock that starts anywhere. SGLang's `bench_serving --output-details` writes the lengths and no times.
Requests that failed have an error, or no output.
"""

from __future__ import annotations

from specfleet.workloads.traces.files import TraceFile
from specfleet.workloads.traces.layout import OBJECTS, Rows, TraceFormat
from specfleet.workloads.traces.options import ReadOptions
from specfleet.workloads.traces.report import TraceError
from specfleet.workloads.traces.rows import Row, rejected


def _rows(file: TraceFile, _: ReadOptions) -> Rows:
    """A row of every request of the one run that a file holds."""
    runs = file.objects()
    place, run = next(runs, (1, None))
    if run is None:
        raise TraceError(f"{file.path}, line {place}: no JSON object; a benchmark writes one a run")
    if more := next(runs, None):
        raise TraceError(
            f"{file.path}, line {more[0]}: a second run, with requests of its own; keep one line"
        )
    columns = [_list(file, run.get(name), name) for name in ("input_lens", "output_lens")]
    optional = [run.get(name) for name in ("start_times", "errors")]
    n = len(columns[0])
    for name, values in zip(("output_lens", "start_times", "errors"), [columns[1], *optional], strict=True):
        if isinstance(values, list) and len(values) != n:
            raise TraceError(
                f"{file.path}, line {place}: {name} has {len(values)} entries, input_lens has {n}; the file "
                "was cut or changed: write it again"
            )
    times, errors = ([None] * n if not isinstance(one, list) else one for one in optional)
    for number, (prompt, output, time, error) in enumerate(
        zip(*columns, times, errors, strict=True), start=1
    ):
        yield number, rejected("failed") if error else Row(time, prompt, output), None


def _list(file: TraceFile, values: object, name: str) -> list[object]:
    """A list of one entry a request; TraceError where there is none."""
    if isinstance(values, list):
        return values
    raise TraceError(
        f"{file.path}: {name} is no list of requests; run the benchmark with --save-detailed (vLLM) or "
        "--output-details (SGLang)"
    )


read_vllm_bench = TraceFormat(
    "vllm bench serve --save-detailed",
    OBJECTS,
    ("input_lens", "output_lens", "start_times"),
    time_key="start_times",
    unit="s",
    ordered=False,
    rows=_rows,
    place="request",
)
read_sglang_bench = TraceFormat(
    "serving benchmark without start times (SGLang --output-details)",
    OBJECTS,
    ("input_lens", "output_lens"),
    absent=("start_times",),
    ordered=False,
    rows=_rows,
    place="request",
)
