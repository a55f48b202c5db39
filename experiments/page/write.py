"""`specfleet report RUN`: a finished run as one page that needs nothing else, report.html."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specfleet.experiments.page.bill import bill_section
from specfleet.experiments.page.data import Finished, payload, read
from specfleet.experiments.page.figures import Figure, controls, figures_of, frame, interval_text
from specfleet.experiments.page.html import Html, join, listed, page, section, tag
from specfleet.experiments.page.overtime import over_time
from specfleet.experiments.page.sections import (
    answer,
    classes_table,
    configuration,
    points_table,
    pools_table,
    tail,
    tasks_table,
    trust,
    versions,
    words,
)
from specfleet.experiments.run.files import write_page
from specfleet.experiments.words.known import known_sentences


def write_report(folder: Path, path: Path | None = None) -> Path:
    """Writes a finished run's page and returns its path.

    The same run gives the same bytes.

    Args:
        folder: of the run.
        path: of the page; None is report.html in the run's folder.

    Raises:
        FileNotFoundError, FolderFault: if it is not the folder of a finished run, or there is something else
            than a page in the place of the page.
    """
    run = read(folder)
    target = path or run.folder / "report.html"
    write_page(target, report_page(run))
    return target


def report_page(run: Finished) -> str:
    """Returns the page of a run."""
    figures, pictures = figures_of(run), over_time(run)
    against, split = [[f for f in figures if (f["kind"] == "split") is tails] for tails in (False, True)]
    sections = {
        "answer": "Answer",
        "figures": "Figures",
        "tail": "Where the tail comes from",
        "points": "All points",
        "trust": "How far to trust it",
        "configuration": "Configuration",
        "versions": "Versions and seeds",
        "words": "Words",
    }
    tails = _tails(run, split)
    if tails is None:
        del sections["tail"]
    body = join(
        [
            _header(run),
            answer(run),
            section(
                "figures",
                sections["figures"],
                _without_script(),
                controls(run),
                interval_text(run),
                *map(frame, against),
                *pictures,
            ),
            tails,
            section(
                "points",
                sections["points"],
                points_table(run.rows, run.shown.axes),
                classes_table(run.rows, run.shown.axes),
                bill_section(run.rows, run.shown.axes),
                pools_table(run.rows, run.shown.axes),
                tasks_table(run.rows, run.shown.axes),
                _known(run),
            ),
            trust(run),
            configuration(run),
            versions(run),
            words(),
        ]
    )
    return page(f"{run.name} · Specfleet", body, sections, payload(run, figures), "report.js", bool(pictures))


def _known(run: Finished) -> Html | None:
    """How many requests points had that went on until they were settled, and what is not known so well."""
    if run.experiment is None:
        return None
    said = known_sentences(run.rows, run.shown.axes, run.experiment.run.precision)
    return listed(said) if said else None


def _header(run: Finished) -> Html:
    setting = tag("p", run.shown.setting, class_="setting") if run.shown.setting else None
    return tag("header", tag("h1", run.name), setting)


def _tails(run: Finished, figures: Sequence[Figure]) -> Html | None:
    said = tail(run)
    if said is None and not figures:
        return None
    sentences, found = said or ([], None)
    return section("tail", "Where the tail comes from", listed(sentences), *map(frame, figures), found)


def _without_script() -> Html:
    said = "The figures need JavaScript; the tables hold the same numbers."
    return tag("noscript", tag("p", said))
