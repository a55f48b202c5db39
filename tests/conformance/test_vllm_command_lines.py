"""Command lines against vLLM 0.33.0's own parser and configuration (`../shared/golden/vllm_cli`).

Each test reads one file and names every case that came out otherwise.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from specfleet.experiments.flags.facts import Configs
from specfleet.experiments.flags.faults import LineFault
from specfleet.experiments.flags.parser import parse
from specfleet.experiments.flags.resolve import EngineSettings, resolve
from specfleet.experiments.flags.shown import drafting, settings
from specfleet.experiments.flags.table import HARMLESS, REFUSED, SIMULATED, flags
from specfleet.experiments.flags.words import commands

H100_SERVER = (1024, 8192)
"""Default sequences and tokens a step of the platform that was recorded."""


def golden(shared: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared / "golden" / "vllm_cli" / name).read_text())
    return found


def resolved(shared: Path, line: str) -> EngineSettings | str:
    """The settings of a line, or the kind of error."""
    configs = Configs([shared / "golden" / "vllm_cli" / "models"], cache=False)
    try:
        return resolve(parse(commands(line)[0].words), H100_SERVER, configs)
    except LineFault as fault:
        return fault.kind


def differences(wanted: dict[str, Any] | None, got: dict[str, Any] | None) -> dict[str, Any]:
    if wanted is None or got is None:
        return {} if wanted is got else {"": (wanted, got)}
    return {key: (value, got.get(key)) for key, value in wanted.items() if got.get(key) != value}


def test_every_flag_has_its_type_default_choices_and_spellings(shared: Path) -> None:
    table, wrong = flags(), {}
    for real in golden(shared, "flags.json")["flags"]:
        mine = table[real["name"]]
        default = {} if real["default"] == "all defaults" else real["default"]
        wanted = (
            default,
            real.get("choices", []),
            {*real.get("short", []), *real.get("aliases", [])},
            real.get("off", []),
            bool(real.get("nullable")),
            real["type"] == "on/off",
        )
        got = (
            mine.default,
            list(mine.choices),
            {*mine.spellings},
            list(mine.off),
            mine.kind.endswith("?"),
            mine.kind == "switch",
        )
        if wanted != got:
            wrong[mine.name] = (wanted, got)
    assert wrong == {}
    assert len(table) == len(golden(shared, "flags.json")["flags"])


def test_every_flag_does_here_what_it_must(shared: Path) -> None:
    may = {
        "simulated": {SIMULATED},
        "harmless": {HARMLESS},
        "refuse": {REFUSED},
        "should": {SIMULATED, REFUSED},
    }
    wrong = {
        mine.name: (mine.does, real["mark"])
        for real in golden(shared, "flags.json")["flags"]
        if (mine := flags()[real["name"]]).does not in may[real["mark"]] and not mine.why
    }
    assert wrong == {}


def test_spellings_are_read_as_the_real_parser_reads_them(shared: Path, tmp_path: Path) -> None:
    wrong = {}
    for case in golden(shared, "forms.json")["cases"]:
        if "serve.yaml" in case:
            (tmp_path / "serve.yaml").write_text(case["serve.yaml"])
        got: Any
        try:
            parsed = parse(commands(case["line"])[0].words, tmp_path)
            name = case.get("name")
            got = parsed.model if name == "model" else parsed.values[name] if name else "accepted"
        except LineFault as fault:
            got = {"error": fault.kind}
        wanted = {"error": case["error"]["kind"]} if "error" in case else case["value"]
        same = (
            not differences(wanted, got)
            if isinstance(wanted, dict) and isinstance(got, dict)
            else wanted == got
        )
        if not same:
            wrong[case["id"]] = (wanted, got)
    assert wrong == {}


def test_speculative_configs_are_resolved_as_the_real_class_resolves_them(shared: Path) -> None:
    wrong = {}
    for case in golden(shared, "speculative_config.json")["cases"]:
        line = f"vllm serve {case['model']} {case['flags']}"
        if case["speculative_config"] is not None:
            line += " --speculative-config " + shlex.quote(json.dumps(case["speculative_config"]))
        got = resolved(shared, line)
        if isinstance(got, str):
            found: Any = {} if case.get("error", {}).get("kind") == got else got
        elif "error" in case:
            found = "accepted"
        else:
            found = differences(case["resolved"], drafting(got)) | differences(case["engine"], settings(got))
        if found:
            wrong[case["id"]] = found
    assert wrong == {}


def test_lines_come_out_with_the_real_limits(shared: Path) -> None:
    wrong = {}
    for case in golden(shared, "serve_lines.json")["cases"]:
        got = resolved(shared, case["line"])
        if isinstance(got, str):
            found: Any = {} if case.get("error", {}).get("kind") == got else got
        elif "error" in case:
            found = "accepted"
        else:
            found = differences(case["resolved"], settings(got))
            found |= differences(case.get("speculative"), drafting(got))
        if found:
            wrong[case["id"]] = found
    assert wrong == {}
