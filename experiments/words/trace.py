"""The `workload:` block that replays a trace, and the file of a law that imitates it, as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from specfleet.experiments.run.imitated import FIGURES, Held
from specfleet.experiments.schema.yamlfile import Value
from specfleet.experiments.words.table import Cells, Column, table_text
from specfleet.workloads.traces.imitation import Imitation
from specfleet.workloads.traces.report import Trace
from specfleet.workloads.traces.statistics import reused_share


def replay_block(
    file: Path, form: str | None, speed: float, limit: int | None, asked: Mapping[str, object], timed: bool
) -> dict[str, object]:
    """Returns the block; a trace without times comes with a rate to be set.

    Args:
        file: the trace.
        form: its format, where it was named.
        speed: of the replay.
        limit: rows to keep.
        asked: how it is read besides, by the keys of `workload.trace`.
        timed: it records arrivals.
    """
    block: dict[str, object] = {"trace": {"file": str(file), **asked} if asked else str(file)}
    if form is not None:
        block["trace_format"] = form
    if speed != 1:
        block["speed"] = speed
    if limit is not None:
        block["limit"] = limit
    if not timed:
        block["request_rate"] = 1.0
    return block


def replay_yaml(
    file: Path, form: str | None, speed: float, limit: int | None, asked: Mapping[str, object], timed: bool
) -> str:
    """Returns the same as text."""
    block = replay_block(file, form, speed, limit, asked, timed)
    note = "" if timed else "# it records no times: set the rate, requests/s\n"
    return note + yaml.safe_dump({"workload": block}, sort_keys=False, width=200).rstrip()


def fit_yaml(experiment: Mapping[str, Value], source: str, lines: Iterable[str]) -> str:
    """Returns an experiment file whose traffic imitates a trace; its head says how well.

    Args:
        experiment: its values.
        source: what was imitated, one line.
        lines: what is known of the fit.
    """
    head = [f"# Traffic that imitates {source}.", *(f"# {line}".rstrip() for line in lines)]
    body = yaml.dump(_lists(experiment), Dumper=_Flow, sort_keys=False, width=110)
    return "\n".join([*head, body.rstrip()]) + "\n"


class _Flow(yaml.SafeDumper):
    """Lists in lines, mappings below each other."""


_Flow.add_representer(
    list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)
)


def _lists(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _lists(child) for key, child in value.items()}
    return [_lists(child) for child in value] if isinstance(value, tuple | list) else value


def fit_lines(law: Imitation, lost: Sequence[str]) -> list[str]:
    """Returns what a law is, and how unevenly it comes.

    Args:
        law: of the traffic.
        lost: what of the trace it does not have, each a sentence.
    """
    said = []
    if law.request_rate is None:
        said.append("No times were recorded: set request_rate, requests/s, or max_concurrency.")
    else:
        rate = f"{law.request_rate:g} requests/s"
        if law.every_s is not None:
            rate += f", in {len(law.requests_per_s)} stretches of {law.every_s:g} s"
        said.append(f"Arrivals: {rate}, gamma gaps of shape {law.burstiness:g}.")
    if law.dispersions:
        each = ", ".join(f"{mine:.2f} ({real:.2f}) in {w:g} s" for w, real, mine in law.dispersions)
        said.append(f"Index of dispersion, in brackets as recorded: {each}.")
    return [*said, *lost]


def lost(trace: Trace) -> list[str]:
    """Returns what of a trace no law here imitates."""
    said = []
    share = reused_share(trace.requests)
    if share:
        said.append(f"Not imitated: {share:.0%} of prompt tokens that came before (prefix cache).")
    if trace.report.sessions and trace.report.sessions < trace.report.rows_kept:
        said.append("Not imitated: sessions; their requests come as single ones.")
    if len(trace.report.classes) > 1:
        said.append("Not imitated: traffic classes; their lengths are taken together.")
    return said


def held_text(served: str, found: Sequence[Held]) -> str:
    """Returns replay and fit side by side."""
    columns = [
        Column("speed", "{:g}"),
        Column("of capacity", "{:.0%}"),
        Column("", left=True),
        *(Column(f"{name} ms", "{:,.1f}") for name in FIGURES),
    ]
    rows: list[Cells] = []
    for held in found:
        rows.append((held.speed, held.share, "replay", *held.replay))
        rows.append((None, None, f"fit, mean of {len(held.fit)}", *held.fit.mean(axis=0).tolist()))
        low, high = held.fit.min(axis=0), held.fit.max(axis=0)
        ranges = (f"{a:,.1f}-{b:,.1f}" for a, b in zip(low.tolist(), high.tolist(), strict=True))
        rows.append((None, None, "fit, range", *ranges))
    return f"Served by {served}:\n{table_text(columns, rows)}"
