"""The documentation says what is so: its files load, its commands run and print what it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from docs_pages import ROOT, Block, Workshop, blocks, commands, pages

from specfleet.experiments.load.config import load
from specfleet.experiments.load.reference_text import COMMAND, anchor, reference_markdown
from specfleet.experiments.run.results import SPEEDUPS
from specfleet.experiments.schema.blocks.experiment import METRICS

PAGES = pages()
BLOCKS = [block for page in PAGES for block in blocks(page)]
FRAGMENTS = [block for block in BLOCKS if block.language == "yaml" and block.mark[0] == "fragment of"]
FILES = [block for block in BLOCKS if block.language == "yaml" and block.mark[0] == "file"]

NOT_RUN = {
    ("tutorial.md", "git clone"): "downloads",
    ("tutorial.md", "python3 -m venv"): "downloads",
    ("tutorial.md", "make demo"): "the whole demo, 40 s; the tutorial's own steps run instead",
    ("trust.md", "specfleet validate"): "needs the measurements beside the repository, and half a minute",
    ("trust.md", "for record in"): "needs the measurements beside the repository, and minutes",
    ("trust.md", "python tests/fidelity"): "needs the measurements beside the repository, and minutes",
    ("trust.md", "specfleet run"): "half a minute of policies that run elsewhere, too",
    ("trust.md", "specfleet measure"): "needs a GPU",
    ("vllm.md", "vllm serve"): "needs a GPU and vLLM",
    ("vllm.md", "vllm bench"): "needs a running server",
    ("vllm.md", "curl"): "needs a running server",
    ("sglang.md", "python3 -m sglang"): "needs a GPU and SGLang",
    ("disaggregation.md", "specfleet run"): "72 points, two minutes; a part of it runs below",
    ("editor.md", "specfleet --install-completion"): "writes into the user's shell start-up file",
}
"""(page, start of the first command) -> why it cannot run in a test."""


def whole_page(name: str) -> Path:
    """Returns a page by its file name."""
    return next(page for page in PAGES if page.name == name)


RUNNING = [
    page
    for page in PAGES
    if any(b.language in ("console", "python") and "no-run" not in b.info for b in blocks(page))
]


@pytest.mark.long
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.name)
def test_every_command_of_a_page_runs_in_order_and_prints_what_the_page_shows(
    page: Path, tmp_path: Path
) -> None:
    with Workshop(tmp_path, served=page.name != "README.md") as workshop:
        for command in workshop.steps(blocks(page)):
            status, output, said = workshop.run(command)
            assert status == 0, f"{command.block}: {command.text}: {said}"
            if "unchecked" not in command.block.info:
                assert output == tuple(line.rstrip() for line in command.output), (
                    f"{command.block}: `{command.text}` prints something else now; "
                    f"write it with: python tests/helpers/docs_pages.py {page.name}"
                )


def test_what_cannot_run_is_on_the_list_and_nothing_else_is() -> None:
    found = [b for b in BLOCKS if b.language == "console" and "no-run" in b.info]
    unlisted = [
        str(b)
        for b in found
        if not any(b.page == page and b.lines[0].startswith(f"$ {start}") for page, start in NOT_RUN)
    ]
    assert not unlisted
    used = {
        key for key in NOT_RUN for b in found if b.page == key[0] and b.lines[0].startswith(f"$ {key[1]}")
    }
    assert used == NOT_RUN.keys()


def test_every_yaml_block_says_whether_it_is_a_file_or_a_fragment() -> None:
    assert not [str(b) for b in BLOCKS if b.language == "yaml" and not b.mark[0]]


@pytest.mark.parametrize("block", FILES, ids=str)
def test_a_file_on_a_page_is_a_whole_experiment_or_the_arguments_of_a_server(
    block: Block, tmp_path: Path
) -> None:
    for beside in blocks(whole_page(block.page)):
        if beside.mark[0] == "file":
            (tmp_path / beside.mark[1]).write_text(beside.text, encoding="utf-8")
    written = tmp_path / block.mark[1]
    data = yaml.safe_load(block.text)
    extra = "" if "workload" in data else "\nworkload: {input_len: 100, output_len: 10}\n"
    of_classes = any(
        isinstance(each, dict) and "acceptance" in each
        for each in data.get("workload", {}).get("mix", {}).values()
    )
    if "speculative_config" in data.get("serve", {}) and "acceptance" not in data and not of_classes:
        extra += "acceptance: {acceptance_length: 2.0, measured_at_k: 3}\n"
    written.write_text(block.text + extra, encoding="utf-8")
    assert load(written).experiment.serve.model


@pytest.mark.parametrize("block", FRAGMENTS, ids=str)
def test_a_fragment_on_a_page_fits_into_an_experiment(block: Block, tmp_path: Path) -> None:
    base = yaml.safe_load((ROOT / "experiments/presets/starter.yaml").read_text(encoding="utf-8"))
    fragment, into = yaml.safe_load(block.text), block.mark[1]
    whole = {key: value for key, value in base.items() if key not in ("sweep", "report")}
    whole["acceptance"] = {"conditional_acceptance": 0.7, "concentration": 18}
    if into == "experiment":
        k = "serve.speculative_config.num_speculative_tokens"
        whole |= {"sweep": {"axes": {"workload.max_concurrency": [1], k: [0, 3]}}} | fragment
    elif into == "serve":
        whole["serve"] |= fragment
    elif into == "plan":
        whole |= {"plan": fragment, "workload": {"input_len": 100, "output_len": 10, "num_prompts": 10}}
    else:
        whole[into] = fragment
    if any("acceptance" in each for each in fragment.get("mix", {}).values()):
        del whole["acceptance"]
    file = tmp_path / "whole.yaml"
    file.write_text(yaml.safe_dump(whole), encoding="utf-8")
    assert load(file).experiment.name


def test_the_reference_is_what_the_models_say() -> None:
    page = whole_page("reference.md").read_text(encoding="utf-8")
    assert page == reference_markdown(), f"the schema has changed; run: {COMMAND}"


def test_every_metric_is_defined() -> None:
    text = whole_page("metrics.md").read_text(encoding="utf-8")
    defined = set(re.findall(r"`([A-Za-z0-9_:]+)`", text))
    latencies = {
        f"{s}_{name}_ms"
        for s in ("mean", "median", "std", "p90", "p95", "p99")
        for name in (
            *("ttft", "tpot", "itl", "itl_per_token", "e2el"),
            *("client_queue_time", "e2el_including_client_queue"),
        )
        if {name, f"mean_{name}_ms"} & defined
    }
    assert not sorted((METRICS | set(SPEEDUPS)) - defined - latencies)


def headings(page: Path) -> set[str]:
    """Returns the anchors of a page."""
    return {
        anchor(line.lstrip("#").strip()) for line in page.read_text().splitlines() if line.startswith("#")
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        name, _, part = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{page.name}: {target}"
        assert not part or part in headings(there), f"{page.name}: {target}"


def test_every_page_can_be_reached_from_the_index() -> None:
    index = whole_page("index.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([a-z0-9.-]+\.md)\)", index))
    assert {page.name for page in PAGES if page.parent.name == "docs"} - {"index.md"} <= linked


def test_the_quantities_of_acceptance_are_never_called_by_one_word() -> None:
    vague = "acceptance " + "rate"
    assert not [page.name for page in PAGES if vague in page.read_text(encoding="utf-8").lower()]


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "console"], ids=str)
def test_a_console_block_starts_with_a_command(block: Block) -> None:
    assert commands(block)


EXTENDING = whole_page("extending.md").read_text(encoding="utf-8")


def test_every_file_that_the_page_on_extending_names_is_there() -> None:
    named = re.findall(r"`((?:sim|hardware|workloads|experiments|tests|docs)/[^`\s:]*)(?:::\w+)?`", EXTENDING)
    assert len(named) > 20
    assert not [path for path in named if not (path.isupper() or list(ROOT.glob(path.replace("NAME", "*"))))]


def test_every_test_that_the_page_on_extending_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", EXTENDING)
    assert len(named) > 8
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path, _ in named}
    assert not [(path, test) for path, test in named if f"def {test}(" not in texts[path]]
