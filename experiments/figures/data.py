"""What a run's figures show: its points as lines over a horizontal axis, and what was fixed around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specfleet.experiments.run.results import Row, is_number, number, read_results
from specfleet.experiments.schema.blocks.plan import PERCENTILES
from specfleet.experiments.schema.yamlfile import read_yaml
from specfleet.experiments.words.values import K, named, same, text


@dataclass(frozen=True)
class Line:
    """The points that share one value of the axis `report.lines`.

    Attributes:
        label: the value, named.
        rows: the points, along the other axis.
        position: among the lines that are not the baseline; picks colour, marker and dashes.
        baseline: whether the others are compared with it.
    """

    label: str
    rows: tuple[Row, ...]
    position: int = 0
    baseline: bool = False

    def having(self, *keys: str) -> tuple[Row, ...]:
        """Returns the rows in which all of `keys` are numbers."""
        return tuple(row for row in self.rows if all(is_number(row.get(key)) for key in keys))


@dataclass(frozen=True)
class Shown:
    """A finished run, ready to be drawn.

    Attributes:
        name: of the experiment.
        along: the axis that lies horizontally, one point of a line a value; None without axes.
        x: `along`, or the metric that `report.x` names instead.
        y: metrics asked for.
        lines: a line a value of `report.lines`, or one.
        axes: all that is swept, dotted keys.
        baseline: axis -> the value that the others are compared with; empty without `report.baseline`.
        replications: the most seeds behind a point.
        fixed: axes that are neither horizontal nor lines, at the value shown, such as `gpu = h100-sxm`.
        setting: model, GPU, drafter and workload in a few words; without what is swept.
        limits_ms: `ttft`, `tpot`, `e2el` -> the limit of the SLO, where one holds for all points.
        formats: of the figures' files; PNG where the run is from before there was a choice.
        folder: of the run, where figures are drawn of single requests; None where there is none.
    """

    name: str
    along: str | None
    x: str | None
    y: tuple[str, ...]
    lines: tuple[Line, ...]
    axes: tuple[str, ...]
    baseline: Mapping[str, object]
    replications: int
    fixed: str
    setting: str
    limits_ms: Mapping[str, float]
    formats: tuple[str, ...] = ("png",)
    folder: Path | None = None

    @property
    def rows(self) -> tuple[Row, ...]:
        """The points of all lines."""
        return tuple(row for line in self.lines for row in line.rows)


def read(folder: Path) -> Shown:
    """Reads a finished run's folder.

    Raises:
        FileNotFoundError: if it is not one.
    """
    results = read_results(folder)
    resolved = results.folder / "resolved.yaml"
    config = read_yaml(resolved).data if resolved.is_file() else {}
    found = shown(results.rows, results.axes, results.report, config, str(results.manifest["name"]))
    return replace(found, folder=results.folder)


def shown(
    rows: Sequence[Row],
    axes: Sequence[str],
    report: Mapping[str, object],
    config: Mapping[str, object],
    name: str,
) -> Shown:
    """Arranges a run's points.

    Args:
        rows: a mapping a point; cells without a value are absent, or None in the columns of axes.
        axes: their keys, in the experiment's order.
        report: the block `report`, its `x` and `lines` filled in.
        config: the resolved experiment, for the words around the data.
        name: of the experiment.
    """
    x, lines = (str(report[key]) if report.get(key) else None for key in ("x", "lines"))
    lines = lines if lines in axes and lines != x else None
    along = x if x in axes else next((key for key in axes if key != lines), None)
    baseline = _mapping(report.get("baseline"))
    others = {key: _chosen(rows, key, baseline) for key in axes if key not in (along, lines)}
    mine = [row for row in rows if all(row[key] == value for key, value in others.items())]
    y, formats = report.get("y"), report.get("formats")
    return Shown(
        name=name,
        along=along,
        x=x if x is not None else along,
        y=tuple(map(str, y)) if isinstance(y, list | tuple) else (),
        lines=tuple(_lines(mine, lines, baseline)),
        axes=tuple(axes),
        baseline=baseline,
        replications=max(
            (int(number(row, "replications")) for row in mine if "replications" in row), default=1
        ),
        fixed=", ".join(named(key, value) for key, value in others.items()),
        setting=_setting(config, axes),
        limits_ms=_limits_ms(config, axes),
        formats=tuple(map(str, formats)) if isinstance(formats, list | tuple) else ("png",),
    )


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _chosen(rows: Sequence[Row], key: str, baseline: Mapping[str, object]) -> object:
    """The value at which an axis is shown that has no place in the figure: the first that is compared."""
    values = list(dict.fromkeys(row[key] for row in rows))
    return next(
        (value for value in values if key not in baseline or not same(value, baseline[key])), values[0]
    )


def _lines(rows: Sequence[Row], key: str | None, baseline: Mapping[str, object]) -> Iterator[Line]:
    if key is None:
        yield Line("", tuple(rows))
        return
    values = list(dict.fromkeys(row[key] for row in rows))
    others = [value for value in values if key not in baseline or not same(value, baseline[key])]
    for value in values:
        chosen = tuple(row for row in rows if row[key] == value)
        if value in others:
            yield Line(named(key, value), chosen, others.index(value))
        else:
            yield Line(named(key, value), chosen, baseline=True)


def _setting(config: Mapping[str, object], axes: Sequence[str]) -> str:
    """The serving setup in a few words. What is swept is left out."""
    serve, workload = _mapping(config.get("serve")), _mapping(config.get("workload"))
    drafter = _mapping(serve.get("speculative_config"))
    gpus = serve.get("tensor_parallel_size", 1)
    words = {
        "serve.model": _last_part(serve.get("model")),
        "serve.quantization": serve.get("quantization"),
        "serve.gpu": _last_part(serve.get("gpu")),
        "serve.tensor_parallel_size": f"TP {gpus}" if gpus != 1 else None,
        "serve.speculative_config.method": drafter.get("method"),
        f"serve.speculative_config.{K}": f"K = {drafter[K]}" if K in drafter else None,
        "workload.preset": workload.get("preset"),
        "workload.max_concurrency": _told(workload, "max_concurrency", "concurrency {}"),
        "workload.request_rate": _told(workload, "request_rate", "{} requests/s"),
    }
    kept = (str(word) for key, word in words.items() if word and not _swept(key, axes))
    return ", ".join(kept)


def _swept(key: str, axes: Sequence[str]) -> bool:
    return any(key == axis or key.startswith(f"{axis}.") for axis in axes)


def _told(block: Mapping[str, object], key: str, form: str) -> str | None:
    value = block.get(key)
    return form.format(text(value)) if is_number(value) else None


def _last_part(value: object) -> str | None:
    """A model's name without its owner; of an inline mapping, its name or what it is based on."""
    if isinstance(value, dict):
        value = value.get("name", value.get("base", "inline"))
    return str(value).rpartition("/")[2] if value else None


def _limits_ms(config: Mapping[str, object], axes: Sequence[str]) -> dict[str, float]:
    slo = _mapping(config.get("slo"))
    found = {}
    for latency in ("ttft", "tpot", "e2el"):
        for key in (f"{latency}_ms", *(f"{percentile}_{latency}_ms" for percentile in PERCENTILES)):
            if is_number(slo.get(key)) and not _swept(f"slo.{key}", axes):
                found[latency] = number(slo, key)
    return found
