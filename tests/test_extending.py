"""What `docs/extending.md` says of adding things: each is added here as the page says, and then works."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from report_runs import FILE

import specfleet as sf
from specfleet.experiments.cli.main import app, main
from specfleet.experiments.schema.blocks.experiment import METRICS
from specfleet.hardware import catalog
from specfleet.workloads import profiles
from specfleet.workloads.requests import RequestTable
from specfleet.workloads.traces.formats import TRACE_FORMATS
from specfleet.workloads.traces.report import LengthSummary, Trace, TraceReport

ROOT = Path(__file__).parents[1]
SMALL = {
    "serve": {"model": "llama-3.1-8b-instruct", "gpu": "h100-sxm", "max_model_len": 2048},
    "workload": {"input_len": 100, "output_len": 10, "max_concurrency": 2, "num_prompts": 4},
}


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the catalogue that records are looked up in."""
    shutil.copytree(ROOT / "hardware/catalog", tmp_path / "catalog")
    monkeypatch.setattr(catalog, "__file__", str(tmp_path / "catalog.py"))
    catalog.forget()
    yield tmp_path / "catalog"
    catalog.forget()


def changed(file: Path, **values: object) -> dict[str, object]:
    """The record of a file with other values."""
    record: dict[str, object] = yaml.safe_load(file.read_text())
    return record | {"aliases": []} | values


@pytest.mark.parametrize(
    ("kind", "like", "key"),
    [
        ("accelerators", "h200", "serve.gpu"),
        ("models", "llama-3.1-8b-instruct", "serve.model"),
        ("engines", "vllm-0.33", "serve.engine"),
    ],
)
def test_a_file_in_the_catalogue_is_a_name_in_an_experiment(
    shelf: Path, kind: str, like: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = changed(shelf / kind / f"{like}.yaml", name="brand-new")
    if kind == "models":
        values["hf_id"] = "somebody/brand-new"
    (shelf / kind / "brand-new.yaml").write_text(yaml.safe_dump(values))
    new, old = (sf.load(SMALL, {key: name}).run() for name in ("brand-new", like))
    assert new.summary["mean_tpot_ms"].iloc[0] == old.summary["mean_tpot_ms"].iloc[0]
    with pytest.raises(SystemExit):
        main(["catalog", kind])
    assert "brand-new" in capsys.readouterr().out


def test_a_drafter_in_the_catalogue_is_a_name_in_an_experiment(shelf: Path) -> None:
    (shelf / "drafters" / "brand-new.yaml").write_text(
        yaml.safe_dump({"eagle3_for": "llama-3.1-8b-instruct", "name": "brand-new", "source": "a test"})
    )
    drafting = {"model": "brand-new", "method": "eagle3", "num_speculative_tokens": 2}
    given = {"serve.speculative_config": drafting, "acceptance": {"conditional_acceptance": 0.5}}
    assert float(str(sf.load(SMALL, given).run().bench()["spec_decode_num_drafts"])) > 0


def test_a_reader_of_traces_is_a_function_and_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read_pairs(
        path: str | os.PathLike[str],
        *,
        speed: float = 1.0,
        limit: int | None = None,
        max_tokens: int | None = None,
    ) -> Trace:
        rows = [tuple(map(int, line.split())) for line in Path(path).read_text().splitlines()][:limit]
        prompts, outputs = np.array(rows).T
        report = TraceReport(
            str(path),
            "pairs",
            len(rows),
            len(rows),
            (),
            "none",
            "none",
            0.0,
            None,
            LengthSummary.of(prompts),
            LengthSummary.of(outputs),
        )
        return Trace(RequestTable.of(prompts, outputs), report)

    monkeypatch.setitem(TRACE_FORMATS, "pairs", read_pairs)
    trace = tmp_path / "mine.txt"
    trace.write_text("100 10\n200 20\n300 30\n")
    workload = {"trace": trace, "trace_format": "pairs", "request_rate": 5.0}
    requests = sf.load(SMALL, {"workload": workload}).run().requests
    assert list(requests["prompt_tokens"]) == [100, 200, 300]
    with pytest.raises(SystemExit):
        main(["trace", str(trace), "--format", "pairs"])
    assert "3 read, 3 kept" in capsys.readouterr().out
    with pytest.raises(sf.UserError, match=r"'pears' is not supported; use one of azure, .*; did you mean"):
        sf.load(SMALL, {"workload": workload | {"trace_format": "pears"}})
    with pytest.raises(SystemExit):
        main(["trace", str(trace), "--format", "pears"])
    assert "--format pears is not supported" in capsys.readouterr().err


SCALED = {
    **{"metric": "concurrency", "target": 0.1, "min": 1, "max": 2, "every_s": 1.0, "window_s": 1.0},
    **{"provision_s": 0.0, "load_s": 5.0},
}


def test_a_figure_of_the_summary_can_be_plotted_and_the_other_way_round() -> None:
    closed = sf.load(yaml.safe_load(FILE), {"workload.num_prompts": 8})
    few = {"workload.num_prompts": 8, "workload.max_concurrency": None, "workload.request_rate": 2.0}
    plain = {
        key: value for key, value in yaml.safe_load(FILE).items() if key not in ("sweep", "report", "claim")
    }
    opened = sf.load(plain, few)
    tasks = sf.load(
        yaml.safe_load(FILE),
        {
            "workload.num_prompts": 8,
            "workload.sessions": {"turns": {"fixed": 2}, "think_time_s": {"fixed": 0.1}},
        },
    )
    scaled = sf.load({**plain, "deployment": {"autoscale": SCALED}}, few | {"workload.num_prompts": 40})
    apart = {"pools": {"p": {"role": "prefill", "replicas": 1}, "d": {"role": "decode", "replicas": 1}}}
    handed = sf.load({**plain, "deployment": apart}, few)
    hurried = sf.load(plain, few | {"workload.patience": {"timeout_s": 0.01, "retries": 1}})
    capped = sf.load(plain, few | {"workload.max_concurrency": 2, "workload.request_rate": 40.0})
    gateway = {"replicas": 1, "gateway": {"max_outstanding": 1, "queue": 0}}
    gated = sf.load({**plain, "deployment": gateway}, few | {"workload.request_rate": 40.0})
    taken = {"price_factor": 0.4, "notice_s": 0.0, "provision_s": 0.1, "at": [{"at_s": 1.0}]}
    spot = sf.load(
        {**plain, "deployment": {"replicas": 2, "spot": taken}},
        few | {"workload.num_prompts": 40, "workload.request_rate": 20.0, "workload.output_len": 300},
    )
    runs = (closed, opened, tasks, scaled, handed, hurried, capped, gated, spot)
    columns = {column for one in runs for column in one.run().summary.columns}
    beside = ("_ci95", "_low", "_high", "_verdict")  # intervals, and what they settle
    figures = {name for name in columns if not {".", ":"} & set(name) and not name.endswith(beside)}
    assert figures - METRICS == {
        "point",
        "replications",
        "rtfx",
        "burstiness",
        "max_concurrency",
        "num_prompts",
        "request_rate",
        "binds",
        "state",
    }
    assert figures >= METRICS


def test_the_readme_lists_every_command() -> None:
    listed = re.findall(r"^specfleet (\w+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    known = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    known += [group.name for group in app.registered_groups if group.name]
    assert sorted(set(listed)) == sorted(known)


def test_a_workload_in_the_catalogue_is_a_name_in_an_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copyfile(profiles.CATALOG / "mt-bench.yaml", tmp_path / "brand-new.yaml")
    monkeypatch.setattr(profiles, "CATALOG", tmp_path)
    load = {"max_concurrency": 2, "num_prompts": 4}
    new = sf.load(SMALL, {"workload": {"preset": "brand-new", **load}}).run()
    monkeypatch.undo()
    old = sf.load(SMALL, {"workload": {"preset": "mt-bench", **load}}).run()
    assert new.requests["prompt_tokens"].equals(old.requests["prompt_tokens"])
