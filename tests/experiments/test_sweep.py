"""Axes expand to points with names, and a drafter of no tokens is no drafter."""

from __future__ import annotations

import math
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.experiments.load.config import load_experiment, resolved
from specfleet.experiments.load.sweep import Point, expand, grid, point_id, short_names
from specfleet.experiments.run.runner import run_tasks, tasks, worthwhile
from specfleet.experiments.schema.blocks.acceptance import Process
from specfleet.experiments.schema.faults import InputFaults

DEMO = Path(__file__).parents[2] / "experiments" / "presets" / "demo.yaml"
K = "serve.speculative_config.num_speculative_tokens"
MINIMAL = """
serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm}
workload: {input_len: 100, output_len: 10, max_concurrency: 4}
"""


def points(folder: Path, text: str, *overrides: str) -> tuple[Point, ...]:
    """The points of an experiment written as text."""
    path = folder / "x.yaml"
    path.write_text(text)
    return expand(load_experiment(path, overrides))


def test_the_demo_is_a_full_grid_with_the_last_axis_fastest() -> None:
    found = expand(load_experiment(DEMO))
    assert len(found) == 36
    assert [point.index for point in found] == list(range(36))
    assert [point.axes[K] for point in found[:5]] == [0, 1, 3, 5, 0]
    assert found[2].id == "max_concurrency=1,num_speculative_tokens=3"
    assert all(
        point.config.workload.max_concurrency == point.axes["workload.max_concurrency"] for point in found
    )


def test_no_drafter_tokens_equals_leaving_the_drafter_out() -> None:
    zero = expand(load_experiment(DEMO, [f"sweep.axes.{K}=[0]", f"report.baseline.{K}=0"]))
    out = [
        "serve.speculative_config=null",
        "sweep.axes={workload.max_concurrency: [1, 2, 4, 8, 16, 32, 64, 128, 256]}",
    ]
    left_out = expand(load_experiment(DEMO, [*out, "report={}"]))
    assert [p.config for p in zero] == [p.config for p in left_out]
    assert [resolved(p.config) for p in zero] == [resolved(p.config) for p in left_out]
    assert zero[0].config.serve.speculative_config is None


def test_an_experiment_without_axes_is_one_point(tmp_path: Path) -> None:
    (only,) = points(tmp_path, MINIMAL)
    assert (only.index, only.id, only.axes) == (0, "point", {})


def test_a_default_that_depends_on_the_point_is_filled_in_there(tmp_path: Path) -> None:
    text = MINIMAL + "sweep: {axes: {serve.engine: [vllm-0.33, vllm-2026-01]}}"
    path = tmp_path / "x.yaml"
    path.write_text(text)
    experiment = load_experiment(path)
    new, old = expand(experiment)
    assert new.config.serve.gpu_memory_utilization != old.config.serve.gpu_memory_utilization
    assert experiment.serve.gpu_memory_utilization is None
    assert experiment.serve.max_model_len == new.config.serve.max_model_len == old.config.serve.max_model_len


def test_axes_that_end_alike_are_named_in_full() -> None:
    keys = ("serve.max_model_len", "serve.speculative_config.max_model_len", "workload.speed")
    names = short_names(keys)
    assert names == {keys[0]: keys[0], keys[1]: keys[1], keys[2]: "speed"}


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (64, "64"),
        (0.9, "0.9"),
        (math.inf, "inf"),
        (True, "true"),
        (None, "null"),
        ("vllm-0.33", "vllm-0.33"),
        ("meta-llama/Llama-3.1-8B", "meta-llama--Llama-3.1-8B"),
    ],
)
def test_points_are_named_by_their_values(value: object, label: str) -> None:
    assert point_id({"a.b": value}) == f"b={label}"  # type: ignore[dict-item]


VALUES = st.one_of(st.integers(), st.floats(allow_nan=False), st.text(max_size=40), st.booleans(), st.none())


@given(st.lists(VALUES, min_size=2, max_size=2, unique_by=repr))
def test_names_of_points_are_safe_folders_and_tell_values_apart(pair: list[int | float | str | None]) -> None:
    names = [point_id({"serve.a": value, "serve.b": "x" * 100}) for value in pair]
    safe = set(string.ascii_letters + string.digits + "._-=,+")
    assert all(set(name) <= safe and len(name) <= 120 and not name.startswith(".") for name in names)
    if {type(value) for value in pair} in ({str}, {int}, {float}):
        assert names[0] != names[1]


AXIS = st.lists(st.integers(), min_size=1, max_size=3, unique=True).map(tuple)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), AXIS, max_size=4))
def test_the_grid_holds_every_combination_once(axes: dict[str, tuple[int, ...]]) -> None:
    found = list(grid(axes))
    assert len({tuple(point.values()) for point in found}) == len(found) == math.prod(map(len, axes.values()))
    assert all(point[key] in axes[key] for point in found for key in axes)


def test_a_mapping_can_be_swept(tmp_path: Path) -> None:
    text = MINIMAL + "sweep: {axes: {serve.gpu: [h100-sxm, {base: h100-sxm, p2p: false}]}}"
    plain, altered = points(tmp_path, text)
    assert plain.id == "gpu=h100-sxm"
    assert altered.config.serve.gpu == {"base": "h100-sxm", "p2p": False}
    assert "{" not in altered.id


def test_an_axis_that_is_set_on_the_command_line_is_a_fault() -> None:
    with pytest.raises(InputFaults, match=r"has no effect; set sweep.axes.workload.max_concurrency=\[...\]"):
        load_experiment(DEMO, ["workload.max_concurrency=8"])


def test_a_swept_profile_is_written_out_at_each_point(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm, max_model_len: 8192, "
        "speculative_config: {method: eagle, model: yuhuili/EAGLE-LLaMA3.1-Instruct-8B, "
        "num_speculative_tokens: 3}}\n"
        "acceptance: {profile: eagle-llama-3.1-8b-chat, concentration: 18}\n"
        "workload: {input_len: 100, output_len: 50, max_concurrency: 2, num_prompts: 4}\n"
        "sweep: {axes: {acceptance.profile: [eagle-llama-3.1-8b-chat, eagle-llama-3.1-8b-gsm8k]}}\n"
    )
    chat, maths = (point.config.acceptance for point in expand(load_experiment(path)))
    assert isinstance(chat, Process) and isinstance(maths, Process)
    assert chat.concentration == maths.concentration == 18.0, "what is written beside a profile wins"
    assert chat.profile is None and chat != maths


SMALL_FLEET = """
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  speculative_config: {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}
acceptance: {by_position: [0.7, 0.5, 0.3], concentration: 12}
deployment: {replicas: 2, router: random}
workload: {input_len: 300, output_len: 40, request_rate: 60, num_prompts: 60}
sweep:
  axes:
    serve.draft_policy: [null, {goodput: {}}, {oracle: {}}]
    workload.request_rate: [20, 60]
"""


def test_the_number_of_processes_changes_no_byte(tmp_path: Path) -> None:
    found = points(tmp_path, SMALL_FLEET)
    written = {}
    for jobs in (1, 4):
        todo = tasks(found, 2, 7, tmp_path / str(jobs))
        ids = [
            task.id
            for task in run_tasks(todo, jobs, lambda _: None, lambda task, error: pytest.fail(task.id))
        ]
        assert sorted(ids) == sorted(task.id for task in todo)
        files = sorted(path for path in (tmp_path / str(jobs)).rglob("*") if path.is_file())
        written[jobs] = {str(path.relative_to(tmp_path / str(jobs))): path.read_bytes() for path in files}
    assert len(written[1]) == 12 * 4
    assert written[1] == written[4]


@pytest.mark.parametrize(("requests", "most", "started"), [(60, 8, 1), (100_000, 8, 8), (100_000, 64, 12)])
def test_more_processes_are_started_for_as_much_work_as_pays(
    tmp_path: Path, requests: int, most: int, started: int
) -> None:
    found = points(tmp_path, SMALL_FLEET, f"workload.num_prompts={requests}")
    assert worthwhile(tasks(found, 2, 7, tmp_path), most) == started


def test_a_request_takes_longer_where_few_share_its_iterations(tmp_path: Path) -> None:
    lone, crowd = (
        tasks(points(tmp_path, SMALL_FLEET, f"workload.max_concurrency={users}"), 1, 0, tmp_path)[0].seconds
        for users in (1, 256)
    )
    assert lone > crowd
