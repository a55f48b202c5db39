"""The page of a plan's and of a break-even search's folder, and its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_runs import HOSTILE, QUOTES

from specfleet.experiments.cli.main import main
from specfleet.experiments.load.rules.acceptance import ASKED
from specfleet.experiments.words.band import BANDS

SVG = '<svg xmlns="http://www.w3.org/2000/svg"><text>cost</text></svg>'


def study(folder: Path, kind: str, answer: dict[str, object], figures: bool = True) -> Path:
    """Writes the folder of a study, hostile text in all its names."""
    (folder / "plots").mkdir(parents=True)
    manifest = {"specfleet": "0", "name": HOSTILE, "kind": kind, "whole": True}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    name = {"plan": "plan.json", "breakeven": "breakeven.json"}[kind]
    (folder / name).write_text(json.dumps({"name": HOSTILE, **answer}))
    if figures:
        (folder / "plots/cost.svg").write_text(SVG)
        (folder / "plots/cost.png").write_bytes(b"")
    return folder


PLAN: dict[str, object] = {
    "answer": [QUOTES, "Speculate: yes"],
    "deployment": {"candidate": QUOTES, "replicas_needed": 2, "kv": {"tokens": 5}},
    "candidates": [{"candidate": HOSTILE, "status": "meets the SLO", "tried": [[1, 2]]}],
}
SEARCH: dict[str, object] = {
    "answer": f"Yes, up to 8: {HOSTILE}",
    "verdicts": ["K = 3: on throughput it pays up to 8"],
    "break_even": [
        {"load": 8.0, "K": 3, "question": "throughput", "conditional_acceptance": 0.25, "by_seed": [0.2]}
    ],
    "best_k": {"throughput": [{"load": 8.0, "K": 3, "speedup": 1.5}]},
}


@pytest.mark.parametrize(("kind", "answer"), [("plan", PLAN), ("breakeven", SEARCH)])
def test_a_study_has_a_page_that_needs_nothing_else(
    tmp_path: Path, kind: str, answer: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = study(tmp_path / "s", kind, answer)
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder)])
    assert ended.value.code == 0 and str(folder / "report.html") in capsys.readouterr().out
    page = (folder / "report.html").read_text()
    assert "data:image/svg+xml;base64," in page and "http://" not in page.partition("<footer>")[0]
    assert HOSTILE not in page and QUOTES not in page
    for said in {"plan": ["Speculate: yes", "meets the SLO"], "breakeven": ["throughput", "0.25", "1.5"]}[
        kind
    ]:
        assert said in page
    answered = page.partition('id="answer"')[2].partition('class="lead"')[2]
    begins = {"plan": "both", "breakeven": "Yes, up to 8: &lt;script"}[kind]
    assert begins in answered[:80], "the answer in one sentence stands first"
    (folder / "plots/cost.svg").unlink()
    with pytest.raises(SystemExit):
        main(["report", str(folder)])
    assert "data:image/png;base64," in (folder / "report.html").read_text(), "PNG where there is no SVG"
    (folder / "plots/cost.svg").write_text(SVG)
    first = page
    with pytest.raises(SystemExit):
        main(["report", str(folder)])
    assert (folder / "report.html").read_text() == first


def test_a_page_asks_for_the_spread_once(tmp_path: Path) -> None:
    notice = "acceptance.concentration is not given: figures are for 18"
    answer = {**SEARCH, "verdicts": [BANDS], "notices": [notice + ASKED, "another"]}
    folder = study(tmp_path / "s", "breakeven", answer)
    with pytest.raises(SystemExit):
        main(["report", str(folder)])
    page = (folder / "report.html").read_text()
    assert page.count("specfleet calibrate") == 1 and notice in page and "another" in page


@pytest.mark.parametrize("kind", ["plan", "breakeven"])
def test_figures_are_not_drawn_of_what_a_folder_does_not_hold(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = study(tmp_path / "s", kind, PLAN)
    with pytest.raises(SystemExit) as ended:
        main(["plot", str(folder)])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and {"plan": "--resume", "breakeven": "search again"}[kind] in said


def test_a_study_that_has_not_ended_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = study(tmp_path / "s", "plan", PLAN)
    (folder / "plan.json").unlink()
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder)])
    assert ended.value.code == 2 and "has not ended" in capsys.readouterr().err
