"""Prices from a file: whose GPU they are, which kind counts, and every fault at its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_toys import SMALL

from specfleet.experiments.load.config import as_given, load
from specfleet.experiments.plan.planner import Planner
from specfleet.experiments.schema.faults import InputFaults


def planned(folder: Path, text: str, name: str = "prices.csv", *overrides: str) -> dict[str, float]:
    """The prices of the small plan, its candidates' GPUs h100-sxm and a100-80gb, with a file of prices."""
    (folder / name).write_text(text)
    file = folder / "small.yaml"
    file.write_text(f"{SMALL}  prices_file: {name}\n")
    plan = load(file, overrides).experiment.plan
    assert plan is not None
    return plan.prices_per_hour_usd


def faults(folder: Path, text: str, name: str = "prices.csv", *overrides: str) -> list[str]:
    """What is wrong, without the folder."""
    with pytest.raises(InputFaults) as found:
        planned(folder, text, name, *overrides)
    return [str(fault).replace(f"{folder}/", "") for fault in found.value.faults]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("prices.csv", "gpu,usd_per_gpu_hour\nh100-sxm,2.5\na100,1.25\nl40s,1\n"),
        ("prices.csv", "usd_per_gpu_hour, kind, gpu\n2.5, spot, h100\n1.25, spot, a100-80gb\n\n"),
        ("prices.yaml", "h100: 2.5\na100-80gb: {spot: 1.25}\nb200: 7\n"),
    ],
)
def test_prices_are_of_the_candidates_by_any_name_of_their_gpu(tmp_path: Path, name: str, text: str) -> None:
    assert planned(tmp_path, text, name) == {"h100-sxm": 2.5, "a100-80gb": 1.25}


def test_a_kind_chooses_and_a_price_without_one_is_of_any(tmp_path: Path) -> None:
    text = "gpu,kind,usd_per_gpu_hour\nh100-sxm,on_demand,3\nh100-sxm,spot,1\na100,,2\n"
    assert planned(tmp_path, text, "p.csv", "plan.price_kind=spot") == {"h100-sxm": 1.0, "a100-80gb": 2.0}
    assert planned(tmp_path, text, "p.csv", "plan.price_kind=on_demand")["h100-sxm"] == 3.0
    (said,) = faults(tmp_path, text, "p.csv")
    assert said.startswith("p.csv:3: h100-sxm: has several prices (on_demand, spot)")
    (said,) = faults(tmp_path, text, "p.csv", "plan.price_kind=reserved")
    assert said == "p.csv:2: h100-sxm: has no price of the kind reserved, only of on_demand, spot"


def test_every_fault_has_its_line(tmp_path: Path) -> None:
    text = (
        "gpu,kind,usd_per_gpu_hour\nh1000,spot,3\nh100-sxm,spot,x\nl40s,spot,-1\nb200,spot,1\nb200,spot,2\n"
    )
    found = faults(tmp_path, text)
    assert [fault.split(":")[:2] for fault in found] == [["prices.csv", str(n)] for n in (2, 3, 4, 6)]
    for said, fault in zip(
        ("is no GPU that is known", "is no price", "is no price", "in line 5 already"), found, strict=True
    ):
        assert said in fault


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu,price\nh100-sxm,1\n", "prices.csv:1: the first line lacks the column usd_per_gpu_hour"),
        ("gpu,usd_per_gpu_hour,note\nh100-sxm,1,x\n", "prices.csv:1: the first line has a column 'note'"),
        ("", "prices.csv:1: the first line lacks the column gpu"),
    ],
)
def test_a_file_without_the_columns_says_which(tmp_path: Path, text: str, said: str) -> None:
    assert faults(tmp_path, text)[0].startswith(said)


def test_a_file_that_is_not_there_and_a_kind_without_a_file_are_faults(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(f"{SMALL}  prices_file: none.csv\n")
    with pytest.raises(InputFaults, match=r"none\.csv:1: the prices of the plan cannot be read"):
        load(file)
    file.write_text(f"{SMALL}  price_kind: spot\n")
    with pytest.raises(InputFaults, match=r"add plan\.prices_file"):
        load(file)


def test_the_plan_s_own_price_counts_before_the_file_s(tmp_path: Path) -> None:
    text = "gpu,usd_per_gpu_hour\nh100-sxm,2.5\n"
    own = "plan.prices_per_hour_usd={h100-sxm: 9}"
    assert planned(tmp_path, text, "prices.csv", own) == {"h100-sxm": 9.0}


def test_candidates_cost_what_the_file_says_and_what_was_asked_can_lie_anywhere(tmp_path: Path) -> None:
    planned(tmp_path, "gpu,usd_per_gpu_hour\nh100-sxm,2.5\n")
    planner = Planner(tmp_path / "small.yaml", (), tmp_path / "out")
    costs = {c.gpu: c.price_per_hour_usd for c in planner.planned.every}
    assert costs == {"h100-sxm": 2.5, "a100-80gb": 2.7}
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "asked.yaml"
    copy.write_text(as_given(tmp_path / "small.yaml"))
    again = Planner(copy, (), tmp_path / "again")
    assert {c.gpu: c.price_per_hour_usd for c in again.planned.every} == costs
