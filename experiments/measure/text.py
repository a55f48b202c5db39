"""What `specfleet measure` prints: errors of the fits, the shipped constants beside them, what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from specfleet.experiments.measure.entry import Fits, LawReport
from specfleet.experiments.measure.points import Backend, KernelCall, Timed
from specfleet.experiments.measure.unsettled import Expected, Topic
from specfleet.experiments.words.table import Column, table_text
from specfleet.hardware.accelerator import Accelerator
from specfleet.hardware.fitting import FitError
from specfleet.hardware.model import ModelSpec

_DEFAULT_C_Q = 0.03


def summary(timed: Timed, fits: Fits, backend: Backend, model: ModelSpec, serve: str, wall_s: float) -> str:
    """The whole text; `serve` is the block that names the constants in an experiment."""
    blocks = [
        _head(timed, fits, backend, wall_s),
        _errors(fits),
        _constants(fits),
        _speeds(fits),
        *_warnings(timed, fits, model),
        f"In an experiment:\n{serve}",
    ]
    return "\n\n".join(blocks)


def _head(timed: Timed, fits: Fits, backend: Backend, wall_s: float) -> str:
    device, reference = backend.device, fits.reference
    if reference.accelerator is not None:
        kin = f"{reference.accelerator.name} in the catalogue; shares refer to its datasheet"
    else:
        kin = f"not in the catalogue; shares refer to its best measured rates, nearest is {reference.shipped}"
    return (
        f"{device.name}: {device.sms} SMs, {device.l2_bytes / 2**20:.0f} MiB L2, {kin}\n"
        f"{backend.software}, attention: {backend.attention}\n"
        f"{len(timed.rows)} points in {wall_s:.0f} s"
    )


def _errors(fits: Fits) -> str:
    columns = (
        Column("law", left=True),
        Column("rows"),
        Column("fit MAPE", "{:.1f}%"),
        Column("P90", "{:.1f}%"),
        Column(f"shipped {fits.reference.shipped}: MAPE, P90, bias", left=True),
    )
    rows = [
        [
            report.name,
            report.error.rows,
            report.error.mape_pct,
            report.error.p90_pct,
            _against(report.shipped),
        ]
        for report in fits.reports
    ]
    return table_text(columns, rows)


def _against(error: FitError | None) -> str:
    if error is None:
        return "-"
    return f"{error.mape_pct:.1f}%, {error.p90_pct:.1f}%, {error.bias_pct:+.1f}%"


def _constants(fits: Fits) -> str:
    columns = (Column("constant", left=True), Column("measured", "{:.4g}"), Column("shipped", "{:.4g}"))
    return table_text(columns, [row for report in fits.reports for row in _constant_rows(report)])


def _constant_rows(report: LawReport) -> Iterable[list[object]]:
    shipped = {**report.shipped_constants}
    if report.name == "attn_verify":
        shipped["c_q"] = _DEFAULT_C_Q
    for key, value in report.constants.items():
        yield [f"{report.name}.{key}", value, shipped.get(key, "-")]


def _speeds(fits: Fits) -> str:
    copy = fits.entry["copy_bytes_per_s"]
    assert isinstance(copy, float)
    share = 100.0 * copy / fits.reference.bytes_per_s
    lines = [f"copy: {copy / 1e12:.3g} TB/s read and written, {share:.0f} % of the bandwidth above"]
    for law, words in (
        ("launch_graph_us", "a kernel without work in a CUDA graph"),
        ("launch_eager_us", "to launch one from the host"),
    ):
        if law in fits.entry:
            lines.append(f"launch: {fits.entry[law]} us, {words}")
    return "\n".join(lines)


def _warnings(timed: Timed, fits: Fits, model: ModelSpec) -> Iterable[str]:
    """Everything that the constants do not rest on a measurement for, a line each."""
    notes = list(fits.notes)
    if fits.entry["framework"] and "torch scaled_dot" in str(fits.entry["framework"]):
        notes.append(
            "attention is torch's, engines run FlashAttention: install vLLM or flash-attn here to time theirs"
        )
    if model.num_experts:
        notes.append(
            "routed experts are not timed: the grouped GEMM is priced with the constants of the others"
        )
    if model.kv_lora_rank:
        notes.append("multi-head latent attention is not timed")
    if timed.left:
        notes.append(f"left out for lack of time (raise --minutes): {_counted(timed.left)}")
    reasons = Counter((point.law, reason) for point, reason in timed.failed)
    notes.extend(f"{count} {law} points did not run: {reason}" for (law, reason), count in reasons.items())
    if notes:
        yield "\n".join(f"note: {note}" for note in notes)


def _counted(points: Iterable[KernelCall]) -> str:
    return ", ".join(f"{count} {law}" for law, count in Counter(point.law for point in points).items())


def plan_text(
    topics: Sequence[Topic],
    taken: Sequence[Sequence[Expected]],
    model: ModelSpec,
    gpu: Accelerator,
    tp: int,
    seconds: float,
) -> str:
    """The questions that are to be timed: points, what a kernel takes by our own model, and the timing."""
    columns = (
        Column("what no table settles", left=True),
        Column("points"),
        Column("kernel us", left=True),
        Column("timing s", "{:.0f}"),
        Column("so far s", "{:.0f}"),
        Column("what its answer changes", left=True),
    )
    rows, total = [], 0.0
    for topic, groups in zip(topics, taken, strict=True):
        wall = sum(group.wall_s for group in groups)
        total += wall
        kernels = [1e6 * each for group in groups for each in group.kernel_s]
        span = f"{min(kernels):.0f} to {max(kernels):,.0f}" if kernels else "-"
        points = sum(len(group.points) for group in groups)
        rows.append([topic.name, points, span, wall, total, topic.why_not or topic.changes])
    fits = (
        f"{total:.0f} s are expected, of {seconds:.0f}"
        if total <= seconds
        else f"{total:.0f} s are expected, of {seconds:.0f}: what comes last is left out (--minutes)"
    )
    head = f"{model.name} on {gpu.name}, tensor parallel {tp}: what only a GPU can settle"
    return "\n".join([head, "", table_text(columns, rows), "", fits])
