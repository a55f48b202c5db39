"""The page of a run: whole, escaped, small, the same each time, and it answers first."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import HOSTILE, LOAD, QUOTES, K, row, simulated, written

from specfleet.experiments.page.answer import headline, within_slo
from specfleet.experiments.page.data import point_name, read
from specfleet.experiments.page.html import (
    ASSETS,
    LIBRARIES,
    Html,
    TableCell,
    embedded,
    read_asset,
    table,
    tag,
)
from specfleet.experiments.page.write import write_report
from specfleet.experiments.run.results import number, write_summary

LARGEST_BYTES = 3_000_000
"""A page that browsers open at once and mail takes."""

FETCHES = {"src", "href", "action", "data", "poster", "srcset", "background", "formaction", "xlink:href"}


class Page(HTMLParser):
    """What a browser would find in a page: elements, text, anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes an element."""
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        """Notes text, that of scripts apart."""
        if self.elements and self.elements[-1][0] == "script" and self.scripts[-1] == "":
            self.scripts[-1] = data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        """All text that is shown."""
        return " ".join(self.words)

    def values(self, attribute: str) -> Iterator[str]:
        """Every value of an attribute."""
        yield from (str(found[attribute]) for _, found in self.elements if found.get(attribute))

    @property
    def payload(self) -> dict[str, object]:
        """What the figures draw."""
        found: dict[str, object] = json.loads(self.scripts[0])
        return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run."""
    return simulated(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    """Its page."""
    return Page(write_report(run))


def test_the_page_lies_beside_the_results_and_the_same_run_gives_the_same_bytes(run: Path) -> None:
    first = write_report(run)
    before = first.read_bytes()
    assert first == run / "report.html"
    assert write_report(run).read_bytes() == before
    other = write_report(run, run.parent / "deep" / "page.html")
    assert other.read_bytes() == before


def test_nothing_is_fetched(page: Page) -> None:
    for name, attributes in page.elements:
        assert name not in {"link", "iframe", "object", "embed", "img", "base"}
        for attribute in FETCHES & set(attributes):
            assert str(attributes[attribute]).startswith("#")
    assert "@import" not in read_asset("page.css") and "url(" not in read_asset("page.css")
    policy = next(found["content"] for _, found in page.elements if "http-equiv" in found)
    assert policy is not None and policy.startswith("default-src 'none'")


def test_only_the_bundled_scripts_may_run(page: Page) -> None:
    policy = str(next(found["content"] for _, found in page.elements if "http-equiv" in found))
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    found = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in page.scripts[1:]]
    assert found == allowed and len(found) == len(LIBRARIES) + 2
    assert "'unsafe-inline'" not in policy.partition("script-src")[2]
    assert not any(attribute.startswith("on") for _, found in page.elements for attribute in found)


def test_every_anchor_has_its_target_and_no_name_is_used_twice(page: Page) -> None:
    names = list(page.values("id"))
    assert len(names) == len(set(names))
    assert {link.removeprefix("#") for link in page.values("href")} <= set(names)
    assert set(page.values("aria-labelledby")) <= set(names)


def test_the_answer_comes_before_the_figures(run: Path, page: Page) -> None:
    said = headline(read(run)).replace(" = ", "\u00a0=\u00a0")
    assert said in page.text
    assert page.text.index(said) < page.text.index("Does it pay?")
    assert "speculation pays" in said and "P99 TPOT" in said


def test_the_page_holds_configuration_versions_seeds_limits_and_the_claim(run: Path, page: Page) -> None:
    assert (run / "resolved.yaml").read_text() in page.text
    for words in ("Not backed:", "Reproduced:", "SHA-256", "3, 4", "Copyright 2010", "Values as a table"):
        assert words in page.text
    assert "alert('yaml')" in page.text


def test_every_summary_point_is_in_the_table_and_in_the_figures(run: Path, page: Page) -> None:
    slices = page.payload["slices"]
    assert isinstance(slices, list)
    lines = slices[0]["lines"]
    assert [line["label"] for line in lines] == ["K = 0 (plain)", "K = 3"]
    assert all(len(line["columns"]["output_throughput"]) == 3 for line in lines)
    assert all(line["splits"][0]["p99"]["tpot_ms"] > 0 for line in lines)
    rows = read(run).rows
    assert len(rows) == 6
    assert all(f"{number(r, 'output_throughput'):,.0f}" in page.text for r in rows)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    page = Page(write_report(written(tmp_path / "run")))
    assert len(page.scripts) == 1 + len(LIBRARIES) + 2
    assert not any(name in {"img", "b"} for name, _ in page.elements)
    assert page.text.count(HOSTILE) >= 5 and page.text.count(QUOTES) >= 4
    slices = page.payload["slices"]
    assert isinstance(slices, list)
    labels = [line["label"] for line in slices[0]["lines"]]
    assert labels[1] == HOSTILE and labels[2].startswith(QUOTES[:20])


def test_a_run_whose_file_no_longer_loads_still_has_its_page_and_says_so(tmp_path: Path) -> None:
    page = Page(write_report(written(tmp_path / "run")))
    assert "resolved.yaml does not load any more" in page.text
    assert "Backed by measurement" not in page.text


def test_a_thousand_points_stay_under_the_limit(tmp_path: Path) -> None:
    page = write_report(written(tmp_path / "run", tuple(f"gpu {i}" for i in range(100)), loads=10))
    assert page.stat().st_size < LARGEST_BYTES


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not the folder of a finished run"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_one_point_without_axes_says_what_it_comes_to(tmp_path: Path) -> None:
    folder = simulated(tmp_path, "sweep.axes={}", "report={}", "claim=null", "replications=1")
    run = read(folder)
    assert re.fullmatch(
        r"[\d,]+ output tokens/s, mean TPOT .* tokens per verification\. .*\[0, 3\]'\.", headline(run)
    )
    page = Page(write_report(folder))
    assert "lines" not in set(page.values("id")) and "fig-step" in set(page.values("id"))


def test_further_axes_are_settings_to_choose_from(tmp_path: Path) -> None:
    folder = written(tmp_path / "run")
    rows = [
        {**row(2**at, line, place, at), "serve.tensor_parallel_size": tp, "point": f"{at}{place}{tp}"}
        for at in range(3)
        for place, line in enumerate(("a", "b"))
        for tp in (1, 2)
    ]
    write_summary(folder / "summary.csv", rows)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["axes"] = {LOAD: [1, 2, 4], "serve.gpu": ["a", "b"], "serve.tensor_parallel_size": [1, 2]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    run = read(folder)
    assert [part.name for part in run.slices] == ["tensor parallel size = 1", "tensor parallel size = 2"]
    assert headline(run).startswith("Does a GPU other than a pay? Over 2 settings: in part in 2.")
    page = Page(write_report(folder))
    assert "slice" in set(page.values("id"))


def test_the_slo_sentence_names_a_point_that_meets_it(run: Path) -> None:
    said = within_slo(read(run))
    assert said is not None and said.startswith("Within the SLO (TTFT 2,000 ms, TPOT 60 ms for 99 %")
    assert point_name({LOAD: 8, K: 3}, (LOAD, K)) == "K = 3, concurrency = 8"


@given(st.text(), st.text())
def test_text_in_a_tag_comes_out_as_it_went_in(inside: str, title: str) -> None:
    made = tag("p", inside, title=title)
    attribute, _, rest = made.removeprefix('<p title="').partition('">')
    assert html.unescape(attribute) == html.unescape(html.escape(title))
    assert not {"<", ">", '"'} & set(attribute) and "<" not in rest.removesuffix("</p>")
    assert tag("p", Html("<b>")) == "<p><b></p>"


@given(
    st.recursive(st.text() | st.floats() | st.none(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_an_embedded_payload_cannot_end_its_script_and_reads_back(payload: object) -> None:
    text = embedded(payload)
    assert not {"<", ">", "&", "\u2028"} & set(text)
    json.loads(text, parse_constant=lambda name: pytest.fail(name))


def test_a_table_says_what_it_is_and_sorts_by_number(tmp_path: Path) -> None:
    made = table("Runs", ["name", "ms"], [[TableCell("a<b"), TableCell("1,000", 1000.0)]])
    assert "<caption>Runs</caption>" in made and 'scope="row">a&lt;b' in made
    assert 'data-value="1000"' in made and 'tabindex="0"' in made


def test_the_bundled_libraries_are_small_whole_and_licensed() -> None:
    sizes = [(ASSETS / name).stat().st_size for name in LIBRARIES]
    assert sum(sizes) < 1_500_000
    licences = read_asset("LICENSES.txt")
    for name in LIBRARIES:
        version = re.search(r"v(\d+\.\d+\.\d+) Copyright", read_asset(name)[:200])
        assert version is not None and version[1] in licences
        assert "</script" not in read_asset(name) and "sourceMappingURL" not in read_asset(name)


def test_under_a_mix_every_class_has_a_row_at_every_point(tmp_path: Path) -> None:
    mixed = (
        "acceptance={chat: {conditional_acceptance: 0.4, concentration: 18}, "
        "code: {conditional_acceptance: 0.8, concentration: 18}}",
        "workload.mix={chat: 0.5, code: 0.5}",
    )
    folder = simulated(tmp_path, *mixed, "claim=null")
    page = write_report(folder).read_text()
    rows = page.partition("By traffic class; ")[2] or page.partition("<caption>By traffic class")[2]
    body = rows.partition("</table>")[0]
    assert body.count(">chat<") == body.count(">code<") == 6
    plain = write_report(simulated(tmp_path / "alone")).read_text()
    assert "<caption>By traffic class" not in plain
