"""Numbers and words are read as YAML 1.2 reads them; what is no experiment file is a fault with a line."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specfleet.experiments.load import dumping
from specfleet.experiments.schema import yamlfile
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.schema.yamlfile import Mark, Value, dotted, parse, parse_value, read_yaml

BAD_INPUT = Path(__file__).parent / "bad_input"
PRESETS = Path(__file__).parents[2] / "experiments" / "presets"

READINGS: list[tuple[str, Value]] = [
    ("2.4e12", 2.4e12),
    ("1e-3", 1e-3),
    ("1E3", 1000.0),
    (".5", 0.5),
    ("1.", 1.0),
    ("-.inf", -math.inf),
    (".inf", math.inf),
    ("+7", 7),
    ("017", 17),
    ("0o17", 15),
    ("0x1F", 31),
    ("true", True),
    ("False", False),
    ("null", None),
    ("~", None),
    ("", None),
    ("on", "on"),
    ("off", "off"),
    ("yes", "yes"),
    ("y", "y"),
    ("none", "none"),
    ("12:30", "12:30"),
    ("1_000", "1_000"),
    ("0b11", "0b11"),
    ("2026-11-29", "2026-11-29"),
    ("'12'", "12"),
    ("inf", "inf"),
    ("=", "="),
    ("!!str 12", "12"),
    ("[1, a, .inf]", (1, "a", math.inf)),
    ("{a: 1}", {"a": 1}),
]


@pytest.mark.parametrize(("text", "value"), READINGS)
def test_values_are_read_as_yaml_1_2_reads_them(text: str, value: Value) -> None:
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_read_as_a_float() -> None:
    found = parse_value(".nan")
    assert isinstance(found, float)
    assert math.isnan(found)


@given(st.one_of(st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False)))
def test_every_number_python_writes_reads_back_the_same(number: float) -> None:
    assert parse_value(repr(number)) == number


def test_every_key_and_list_entry_keeps_its_line() -> None:
    document = parse("a: 1\nb:\n  c: [x,\n      y]\n", "f.yaml")
    lines = {dotted(path): mark.line for path, mark in document.marks.items() if path}
    assert lines == {"a": 1, "b": 2, "b.c": 3, "b.c[0]": 3, "b.c[1]": 4}
    assert document.mark(("b", "missing", "deeper")) == Mark("f.yaml", 2)


def test_an_alias_repeats_a_value() -> None:
    assert parse("a: &x {b: 1}\nc: *x\n", "f").data == {"a": {"b": 1}, "c": {"b": 1}}


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "windows.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: a\r\nseed: 1\r\n")
    assert read_yaml(path).data == {"name": "a", "seed": 1}


FAULTS = {
    "alias_loop": ["3: serve.model: an alias contains itself; write the value out"],
    "control_character": ["2: the character '\\x07' is not allowed in YAML; remove it"],
    "duplicate_key": [
        "5: serve.model: given twice, first in line 3; keep one",
        "6: name: given twice, first in line 1; keep one",
    ],
    "empty": ["1: the file is empty; an experiment needs serve: and workload:"],
    "huge_number": ["2: seed: 1e999 is too large for a number; write .inf for no limit"],
    "latin1": ["2: not UTF-8 text; save the file as UTF-8"],
    "list": ["1: the top level is a list; write `key: value` lines, as in `serve:` and `workload:`"],
    "number_key": ["2: the key 1 is not text; put it in quotes"],
    "tab": ["2: a tab between values; YAML wants spaces"],
    "tagged": ["2: seed: the tag tag:yaml.org,2002:python/name:os.system is not supported here; remove it"],
    "two_documents": ["2: a second document starts here; one file is one experiment"],
    "unclosed": [
        "3: not YAML while parsing a flow mapping: expected ',' or '}', but got '<stream end>'; "
        "check quotes, brackets and indentation"
    ],
    "unknown_anchor": ["2: the alias *base has no anchor; define it above with &base"],
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_file_that_is_no_experiment_says_why_and_where(name: str) -> None:
    path = BAD_INPUT / f"{name}.yaml"
    try:
        faults = list(read_yaml(path).faults)
    except InputFaults as error:
        faults = error.faults
    assert [str(fault).removeprefix(f"{path}:") for fault in faults] == FAULTS[name]


def test_a_missing_file_and_a_folder_are_faults(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "no.yaml", "there is no such file"), (tmp_path, "cannot be read")):
        with pytest.raises(InputFaults, match=message):
            read_yaml(path)


def test_an_escaped_surrogate_pair_is_one_character_and_half_of_one_a_fault() -> None:
    assert parse_value(r'"\ud83d\ude00"') == "\U0001f600"
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        parse_value(r'"\ud83d"')


def test_deep_nesting_and_multiplying_aliases_are_faults() -> None:
    with pytest.raises(InputFaults, match="nested too deeply"):
        parse("a: " + "[" * 5000, "f")
    levels = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 8)]
    assert "the aliases multiply" in str(parse("\n".join(levels), "f").faults[0])


TOKENS = [
    *(
        "a",
        "b: ",
        "key:",
        " ",
        "\n",
        "\n  ",
        "- ",
        "-",
        "[",
        "]",
        "{",
        "}",
        ", ",
        ",",
        ":",
        ": ",
        '"',
        "'",
        "#",
    ),
    *(
        " # c",
        '"x y"',
        "1",
        "2.5e3",
        "null",
        "~",
        "---",
        "...",
        "<<",
        "&a ",
        "*a",
        "!x ",
        " ? ",
        "?",
        "%",
        "@",
    ),
    *("|", "|\n  x", ">-\n  y\n  z", "\\n", "http://x", "\t", "\u2028", "\ufeff", ".inf", "é"),
]


def both_ways(text: str, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is read of a text, or what is wrong with it: where libyaml may read it, and where it may not."""
    found: list[object] = []
    for fast in (yamlfile._compose_plain, lambda text: None):
        with monkeypatch.context() as patch:
            patch.setattr(yamlfile, "_compose_plain", fast)
            try:
                document = parse(text, "f")
                found.append((repr(document.data), document.marks, document.faults))
            except InputFaults as error:
                found.append(error.faults)
    return found


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML was built without libyaml")
def test_every_preset_is_read_by_libyaml_and_as_pyyaml_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for file in PRESETS.rglob("*.yaml"):
        text = file.read_text(encoding="utf-8")
        fast, slow = both_ways(text, monkeypatch)
        assert fast == slow, file
        assert yamlfile._compose_plain(text) is not None, file


@settings(max_examples=400)
@given(st.lists(st.sampled_from(TOKENS), max_size=20).map("".join))
def test_what_libyaml_reads_pyyaml_reads_alike(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fast, slow = both_ways(text, patch)
    assert fast == slow


@settings(max_examples=250, deadline=None)
@example("w " * 6000)
@given(
    st.one_of(
        st.lists(st.sampled_from([*TOKENS, "\r", "\a", "\U0001f600", "\ud800", "word"]), max_size=9).map(
            "".join
        ),
        st.text(max_size=12),
        st.integers(60, 140).map(lambda length: "k" * length),
    )
)
def test_what_libyaml_writes_pyyaml_writes_alike(text: str) -> None:
    data = {
        "k": text,
        "l": (text, [1, None, True, 2.5, math.inf, 1e-7], ()),
        text or "x": {"deep": text, "n": {}},
    }
    with pytest.MonkeyPatch.context() as patch:
        fast = dumping.dumped(data)
        patch.setattr(dumping, "_FastDumper", dumping._Dumper)
        assert fast == dumping.dumped(data)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_with_a_reason(text: str) -> None:
    try:
        parse(text, "f")
    except InputFaults as error:
        assert error.faults


@given(st.text(max_size=20))
def test_a_quoted_text_stays_that_text_or_is_refused_for_its_nul(text: str) -> None:
    written = yaml.safe_dump(text, default_style='"', allow_unicode=False)
    if "\0" in text:
        with pytest.raises(ValueError, match="holds a NUL character; remove it"):
            parse_value(written)
    else:
        assert parse_value(written) == text
