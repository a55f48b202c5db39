"""Which tool wrote a file: told from it, overridable, and no bytes make a reader fail in any other way."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_aiperf import EXPORT
from test_bench_table import TABLE
from test_guidellm import bench
from test_inferencex import POINT
from test_llmperf import SUMMARY
from test_prometheus import VLLM as SCRAPE
from test_server_logs import LLAMACPP, SGLANG, VLLM, iteration
from test_sglang_bench import LINE
from test_vllm_bench import NEW

from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.tools.read import FORMATS, read_tool

SOUND = {
    "guidellm": json.dumps({"benchmarks": [bench({"type_": "concurrent", "streams": 8})]}, indent=1),
    "aiperf": json.dumps(EXPORT, indent=1),
    "llmperf": json.dumps(SUMMARY, indent=1),
    "inferencex": json.dumps([POINT], indent=1),
    "sglang-bench": json.dumps(LINE),
    "trtllm-log": iteration(3, 8, 20.0, 8) * 3,
    "vllm-bench": json.dumps(NEW, indent=1),
    "bench-table": TABLE,
    "vllm-log": VLLM,
    "sglang-log": SGLANG,
    "llamacpp-log": LLAMACPP.format("acceptance"),
    "prometheus": SCRAPE,
}


def test_every_format_has_a_sound_file_that_is_told_from_the_others(tmp_path: Path) -> None:
    assert SOUND.keys() == FORMATS.keys()
    for name, text in SOUND.items():
        path = tmp_path / "any.name"
        path.write_text(text)
        reading = read_tool(path)
        assert reading.format == name
        assert reading.said().endswith(f"(--format {name})")
        assert read_tool(path, name).results == reading.results


def test_a_format_can_be_stated_and_an_unknown_one_is_corrected(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(SOUND["sglang-bench"])
    (found,) = read_tool(path, "vllm-bench").results
    assert "mean_itl_ms" in found.numbers
    with pytest.raises(InputFaults, match="--format: 'vlm-bench' is unknown; did you mean vllm-bench"):
        read_tool(path, "vlm-bench")


def taken(path: Path, format_: str | None) -> None:
    """Reads a file, or ends in a sentence."""
    try:
        assert read_tool(path, format_).results
    except InputFaults as refused:
        assert refused.faults and "Traceback" not in refused.render()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=80), st.sampled_from([None, *FORMATS]))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, format_: str | None) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    taken(path, format_)


WRONG: list[object] = [
    None,
    "x",
    -1,
    0,
    10**400,
    1e308,
    float("nan"),
    [],
    [[]],
    {},
    {"a": {}},
    True,
    "inf",
    "\ud800",
]


@pytest.mark.parametrize("name", [name for name, text in SOUND.items() if text.startswith(("{", "[\n"))])
def test_a_json_result_with_any_value_replaced_is_read_or_refused(tmp_path: Path, name: str) -> None:
    path, draw = tmp_path / "x.json", random.Random(name)
    for _ in range(150):
        document = json.loads(SOUND[name])
        place = document
        while True:
            key = draw.choice(list(place) if isinstance(place, dict) else list(range(len(place))))
            if not isinstance(place[key], dict | list) or not place[key] or draw.random() < 0.3:
                place[key] = draw.choice(WRONG)
                break
            place = place[key]
        path.write_text(json.dumps(document))
        taken(path, draw.choice([None, name]))


@pytest.mark.parametrize("name", SOUND)
def test_a_file_damaged_anywhere_is_read_or_refused(tmp_path: Path, name: str) -> None:
    path, draw, sound = tmp_path / "x", random.Random(name), SOUND[name].encode()
    for _ in range(150):
        at, n = draw.randrange(len(sound)), draw.randrange(1, 12)
        put = draw.choice([b"", b"9" * 40, b"-1", b"nan", b"\xff\x00", b"1e999", sound[at : at + 5] * 9])
        path.write_bytes(sound[:at] + put + sound[at + n :])
        taken(path, draw.choice([None, name]))
