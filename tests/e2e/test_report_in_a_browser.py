"""The pages in a real headless Chromium: no errors, every control and anchor works, phone and desktop.

Needs the extra `e2e` and Chromium with its driver (Debian: chromium, chromium-driver). Without them the
tests are skipped and say so; where CI=true they fail. Screenshots go to the folder that
SPECFLEET_SCREENSHOTS names, else to pytest's.
"""

from __future__ import annotations

import base64
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from report_runs import HOSTILE, LONG, QUOTES, UNICODE, simulated, written

from specfleet.experiments.page.compare import write_comparison
from specfleet.experiments.page.write import write_report

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
)
PHONE, DESKTOP = 390, 1280


def _absent(what: str) -> NoReturn:
    """Skips with the reason; in CI the tests must run."""
    reason = f"no browser tests: {what} (extra e2e; Debian's chromium and chromium-driver)"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A headless Chromium with a fresh profile."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        _absent("chromium or chromedriver is not installed")
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        _absent("selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run's page, one with hostile names, and the page of two runs."""
    root = tmp_path_factory.mktemp("pages")
    run = simulated(root / "run")
    again = simulated(root / "again", "serve.max_num_seqs=16")
    return {
        "report": write_report(run),
        "hostile": write_report(written(root / "hostile", lines=("a", HOSTILE, QUOTES, UNICODE, LONG))),
        "compare": write_comparison(run, again, root / "compare.html"),
    }


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Where screenshots go."""
    folder = Path(os.environ.get("SPECFLEET_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def opened(browser: Chrome, page: Path, width: int = DESKTOP, scheme: str = "light") -> Chrome:
    """Opens a page at a width and in a colour scheme, and waits for its figures."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wanted = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": wanted})
    browser.get(page.as_uri())
    settle(browser)
    return browser


def settle(browser: Chrome) -> None:
    """Waits until two frames are drawn."""
    browser.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
    )


def run_script(browser: Chrome, script: str) -> object:
    """Runs a script and waits for what it changes to be drawn."""
    found: object = browser.execute_script(script)
    settle(browser)
    return found


def complaints(browser: Chrome) -> list[str]:
    """What the page wrote to the console."""
    entries = browser.execute("getLog", {"type": "browser"})["value"]
    return [f"{entry['level']}: {entry['message']}" for entry in entries]


def screenshot(browser: Chrome, path: Path) -> tuple[int, int]:
    """Takes a picture of the whole page and returns its width and height."""
    found = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True}
    )
    data = base64.b64decode(found["data"])
    path.write_bytes(data)
    width, height = struct.unpack(">II", data[16:24])
    return width, height


@pytest.mark.parametrize("name", ["report", "hostile", "compare"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_opens_without_complaint_and_fits_its_width(
    browser: Chrome, pages: dict[str, Path], shots: Path, name: str, width: int, scheme: str
) -> None:
    opened(browser, pages[name], width, scheme)
    assert complaints(browser) == []
    assert run_script(browser, "return document.documentElement.scrollWidth <= window.innerWidth")
    assert run_script(browser, "return performance.getEntriesByType('resource').length") == 0
    assert run_script(browser, "return document.querySelectorAll('.plot svg path').length > 0")
    wide = "return [...document.querySelectorAll('.plot svg')].every((s) => s.clientWidth <= innerWidth)"
    assert run_script(browser, wide)
    taken = screenshot(browser, shots / f"{name}-{width}-{scheme}.png")
    assert taken[0] <= width and taken[1] >= 900


def test_hiding_a_line_takes_it_from_every_figure_and_showing_all_brings_it_back(
    browser: Chrome, pages: dict[str, Path]
) -> None:
    opened(browser, pages["report"])
    count = "return document.querySelectorAll('#fig-latency .plot g[aria-label=dot] > *').length"
    steps = "return document.querySelectorAll('#fig-step .panel').length"
    every = run_script(browser, count)
    assert run_script(browser, steps) == 2
    run_script(browser, "document.querySelector('#lines input[value=\"K = 3\"]').click()")
    assert run_script(browser, count) == int(str(every)) / 2
    assert run_script(browser, steps) == 1
    run_script(browser, "document.querySelector('#lines input').click()")
    assert "No line" in str(run_script(browser, "return document.querySelector('#fig-latency').textContent"))
    run_script(browser, "document.getElementById('show-all').click()")
    assert run_script(browser, count) == every
    assert complaints(browser) == []


def test_the_statistic_switches_the_latencies_and_their_table(
    browser: Chrome, pages: dict[str, Path]
) -> None:
    opened(browser, pages["report"])
    titles = "return [...document.querySelectorAll('#fig-latency h4')].map((h) => h.textContent)"
    assert "P99 TPOT (ms)" in list(map(str, _items(run_script(browser, titles))))
    run_script(browser, "document.querySelector('#fig-latency summary').click()")
    run_script(browser, "document.querySelector('input[name=statistic][value=mean]').click()")
    assert "Mean TPOT (ms)" in list(map(str, _items(run_script(browser, titles))))
    values = "return document.querySelector('#fig-latency .values').textContent"
    said = str(run_script(browser, values))
    assert "Mean TTFT (ms)" in said and "K = 3" in said and " to " in said
    assert complaints(browser) == []


def _items(found: object) -> list[object]:
    """A list that a script returned."""
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("name", ["report", "compare"])
def test_every_anchor_leads_to_its_section(browser: Chrome, pages: dict[str, Path], name: str) -> None:
    opened(browser, pages[name])
    links = _items(run_script(browser, "return [...document.links].map((a) => a.getAttribute('href'))"))
    assert len(links) > 4
    for link in map(str, links):
        run_script(browser, f"document.querySelector('a[href=\"{link}\"]').click()")
        assert run_script(browser, "return location.hash") == link
        top = f"document.getElementById('{link[1:]}').getBoundingClientRect().top"
        at_end = "scrollY + innerHeight >= document.documentElement.scrollHeight - 2"
        assert run_script(browser, f"return Math.abs({top}) < 120 || {at_end}"), link
    assert complaints(browser) == []


def test_a_heading_sorts_its_table_both_ways(browser: Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["report"])
    rows = "[...document.querySelectorAll('#points tbody tr')]"
    column = f"return {rows}.map((row) => Number(row.cells[2].dataset.value))"
    button = "document.querySelectorAll('#points thead button')[2]"
    for order, ascending in (("ascending", True), ("descending", False)):
        run_script(browser, f"{button}.click()")
        numbers = [float(str(value)) for value in _items(run_script(browser, column))]
        assert numbers == sorted(numbers, reverse=not ascending)
        assert run_script(browser, f"return {button}.closest('th').getAttribute('aria-sort')") == order


def test_the_keyboard_reaches_every_value_of_a_figure(browser: Chrome, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    opened(browser, pages["report"])
    plot = browser.find_element(By.CSS_SELECTOR, "#fig-throughput .plot")
    heard = set()
    for _ in range(6):
        plot.send_keys(Keys.ARROW_RIGHT)
        settle(browser)
        heard.add(str(run_script(browser, "return document.getElementById('said').textContent")))
    assert len(heard) == 6 and all("output throughput" in said for said in heard)
    tip = "return document.querySelector('#fig-throughput g[aria-label=tip]').textContent"
    assert "concurrency" in str(run_script(browser, tip))
    labelled = (
        "return [...document.querySelectorAll('input, select')].every((i) => i.labels.length === 1) && "
        "[...document.querySelectorAll('[role=img], [role=region]')].every((r) => r.ariaLabel)"
    )
    assert run_script(browser, labelled)


def test_the_other_switches_redraw_their_figure(browser: Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["report"])
    run_script(browser, "document.querySelector('#fig-step .keys input').click()")
    title = "return document.querySelector('#fig-step h4').textContent"
    assert "% of the step" in str(run_script(browser, title))
    change = "s.value = '1'; s.dispatchEvent(new Event('change'))"
    before = run_script(browser, "return document.querySelector('#fig-tail-parts .panels').innerHTML")
    run_script(browser, f"const s = document.querySelector('#fig-tail-parts select'); {change}")
    assert before != run_script(browser, "return document.querySelector('#fig-tail-parts .panels').innerHTML")
    opened(browser, pages["compare"])
    run_script(browser, "document.querySelector('input[name=unit][value=ms]').click()")
    run_script(browser, "document.querySelector('input[name=statistic][value=p99]').click()")
    titles = "return document.querySelector('#fig-differences h4').textContent"
    assert run_script(browser, titles) == "P99 TTFT (ms)"
    assert complaints(browser) == []


def test_hostile_names_run_nothing_and_are_shown_as_written(browser: Chrome, pages: dict[str, Path]) -> None:
    opened(browser, pages["hostile"])
    assert run_script(browser, "return document.querySelectorAll('img, main script').length") == 0
    assert HOSTILE in str(run_script(browser, "return document.getElementById('lines').textContent"))
    assert run_script(browser, "return document.querySelector('h1').textContent") == HOSTILE
    run_script(browser, "document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert run_script(browser, "return document.querySelectorAll('img').length") == 0
    assert complaints(browser) == []


def test_on_paper_the_page_is_light_and_unfolded(
    browser: Chrome, pages: dict[str, Path], shots: Path
) -> None:
    opened(browser, pages["report"], scheme="dark")
    found = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    pdf = base64.b64decode(found["data"])
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") > 1
    (shots / "report.pdf").write_bytes(pdf)
    assert run_script(browser, "return document.querySelector('#configuration details').open")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    colour = "return getComputedStyle(document.body).backgroundColor"
    assert run_script(browser, colour) == "rgb(255, 255, 255)"


def test_without_scripts_the_answer_and_the_tables_are_there(
    browser: Chrome, pages: dict[str, Path], shots: Path
) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(pages["report"].as_uri())
        text = browser.find_element("css selector", "main").text
        screenshot(browser, shots / "report-no-script.png")
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "The figures need JavaScript" in text and "pays" in text
    assert "K = 3" in text.replace("\u00a0", " ") and "Show all" not in text
