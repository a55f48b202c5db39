"""`specfleet results list`: what the results folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specfleet.experiments.cli.base import plain_errors

results = typer.Typer(help="What has been run.", no_args_is_help=True, rich_markup_mode=None)


@results.callback()
def _results() -> None:
    """What has been run."""


@results.command("list")
def list_results(
    name: Annotated[str | None, typer.Argument(help="Only results/NAME.")] = None,
    base: Annotated[Path, typer.Option("--in", help="The folder to look into.")] = Path("results"),
) -> None:
    """List runs, plans and break-even searches: number, date, simulations, whether whole, what differs."""
    from specfleet.experiments.run.listing import listing
    from specfleet.experiments.words.results import listing_text
    from specfleet.experiments.words.width import say

    with plain_errors():
        say(listing_text(listing(base, name)))
