"""What a file says of routers and the gateway: done, or refused at its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_pool_files import FILE, faults, written

from specfleet.experiments.load.config import load_experiment, resolved
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.built import build
from specfleet.experiments.run.results import Row
from specfleet.experiments.run.runner import simulate_into
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.words.saturation import saturation
from specfleet.sim.router import ROUTERS

ROUTER = """\
  router:
    by_class: {code: fast, chat: plain}
    then: least_outstanding
"""
BUSY = FILE.replace("request_rate: 20", "request_rate: 2000")


def router(text: str, rest: str = "") -> str:
    """The file with another router, and further keys of its deployment."""
    return BUSY.replace(ROUTER, f"  router: {text}\n{rest}")


def engine_json(folder: Path, text: str) -> dict[str, object]:
    """What a point of a file did."""
    (point,) = expand(load_experiment(written(folder, text)))
    simulate_into(folder / "point", point.config, 1, every_turn=True)
    found: dict[str, object] = json.loads((folder / "point" / "engine.json").read_text())
    return found


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_every_router_is_reached_by_its_name(tmp_path: Path, name: str) -> None:
    found = engine_json(tmp_path, router(name))
    stepped = found["stepped"]
    assert isinstance(stepped, dict)
    assert stepped["because"] == ""
    (row,) = [expand(load_experiment(written(tmp_path, router(name))))[0].config.deployment.routing]
    assert row.then == name


def test_classes_go_to_the_drafter_by_what_it_is_expected_to_have_accepted(tmp_path: Path) -> None:
    text = router("{by_acceptance: {to: fast, at_least: 2.5}, otherwise: plain, then: power_of_two}")
    (point,) = expand(load_experiment(written(tmp_path, text)))
    assert build(point.config).scenario.deployment.routing.by_class == {"code": "fast", "": "plain"}
    all_there = text.replace("at_least: 2.5", "at_least: 1.5")
    (point,) = expand(load_experiment(written(tmp_path, all_there)))
    routing = build(point.config).scenario.deployment.routing
    assert routing.by_class == {"code": "fast", "chat": "fast", "": "plain"}


def test_a_loaded_pool_spills_and_old_views_hold_on_longer(tmp_path: Path) -> None:
    spilt = "{by_class: {code: fast, chat: plain}, spill: {fast: {above: 2, to: plain}}}"
    found: dict[str, int] = {}
    for name, text in {"spill": spilt, "none": "{by_class: {code: fast, chat: plain}}"}.items():
        (tmp_path / name).mkdir()
        pools = engine_json(tmp_path / name, router(text))["pools"]
        assert isinstance(pools, list)
        found[name] = int(pools[0]["requests"])
    assert found["spill"] < found["none"]


def test_a_gateway_says_what_it_held_turned_away_and_gave_up(tmp_path: Path) -> None:
    gateway = "  gateway: {max_outstanding: 2, queue: 6, timeout_ms: 300, retries: 1, backoff_ms: 10}\n"
    found = engine_json(tmp_path, router("least_outstanding", gateway))
    refusals = found["refusals"]
    assert isinstance(refusals, dict)
    lost = int(str(found["gateway_rejected"])) + int(str(found["gateway_timed_out"]))
    assert lost == sum(refusals.values()) == found["rejected"]
    assert lost > 0
    assert int(str(found["gateway_turned_away"])) >= lost
    assert float(str(found["gateway_p99_held_ms"])) <= 300.0 + 2 * 300.0
    requests = (tmp_path / "point" / "requests.csv").read_text().splitlines()
    at = requests[0].split(",").index("turned_away")
    assert max(int(row.split(",")[at]) for row in requests[1:]) == 2


def test_one_pool_takes_a_gateway_and_old_views_too(tmp_path: Path) -> None:
    head, rest = BUSY.split("deployment:")
    alone = "{replicas: 2, router: {then: least_outstanding, refresh_ms: 100}, gateway: {max_outstanding: 4}}"
    text = f"{head}deployment: {alone}\nworkload:{rest.split('workload:')[1]}"
    found = engine_json(tmp_path, text)
    assert "pools" not in found and len(found["replicas"]) == 2  # type: ignore[arg-type]
    assert found["rejected"] == 0.0
    experiment = load_experiment(written(tmp_path, text))
    (tmp_path / "again.yaml").write_text(resolved(experiment))
    assert load_experiment(tmp_path / "again.yaml") == experiment


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("{then: least}", "deployment.router.then: 'least' is not supported"),
        ("{by_clas: {code: fast}}", "deployment.router.by_clas: unknown key; did you mean by_class?"),
        ("{then: random, refresh_ms: 5}", "deployment.router.refresh_ms: random looks at no replica"),
        ("{by_acceptance: {to: plain, at_least: 2}, otherwise: fast}", "to: pool plain drafts nothing"),
        ("{by_acceptance: {to: fats, at_least: 2}, otherwise: fast}", "'fats' is no pool; did you mean fast"),
        ("{by_acceptance: {to: fast, at_least: 2}}", "by_acceptance: does not say where other classes go"),
        ("{spill: {fast: {above: 2, to: plain}}}", "spill.fast: no class is sent to fast alone"),
        (
            "{by_class: {code: fast, chat: plain}, spill: {fast: {above: 2, to: fast}}}",
            "spill.fast.to: a pool cannot spill to itself",
        ),
        ("random\n  gateway: {queue: 3, admit_ttft_ms: 50}", "queue: nobody is held without max_outstanding"),
        ("random\n  gateway: {retries: 3}", "deployment.gateway: turns nobody away"),
        ("random\n  gateway: {max_outstanding: 0}", "max_outstanding: must be at least 1, not 0"),
    ],
)
def test_a_key_that_says_nothing_or_something_wrong_is_a_fault(tmp_path: Path, new: str, said: str) -> None:
    found = faults(tmp_path, router(new))
    assert len(found) == 1 and said in found[0], found


@pytest.mark.parametrize(
    "block",
    ["gateway: {max_outstanding: 4}", "slow: [{share: 0.5, factor: 2}]", "pools: {a: {replicas: 1}}"],
)
def test_a_plan_refuses_what_it_would_leave_out(tmp_path: Path, block: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm}\n"
        "workload: {input_len: 100, output_len: 10, request_rate: 2}\n"
        f"slo: {{ttft_ms: 500}}\nplan: {{}}\ndeployment: {{{block}}}\n"
    )
    said = "is what the plan finds" if block.startswith("pools") else "is not planned yet"
    with pytest.raises(InputFaults, match=rf"x.yaml:5: deployment.{block.partition(':')[0]}: {said}"):
        load_experiment(file)


def test_what_a_gateway_turns_away_does_not_make_the_others_wait() -> None:
    row: Row = {"offered_per_s": 80.0, "served_per_s": 10.7, "state": "saturated"}
    (alone,) = saturation([row], [], None)
    (held,) = saturation([row | {"gateway_rejected": 300.0, "gateway_timed_out": 20.0}], [], None)
    assert alone.endswith("Its latencies grow as long as the run lasts.")
    assert held.endswith("The gateway gave 320 requests up, so the others wait no longer for it.")
