"""Sources of texts for `peer data` and `peer tokenizer`: find them, ask about suspicious ones, and show progress while
reading."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peer.cli.printing import confirm, echo

if TYPE_CHECKING:
    from peer.data.sources import Sources

SHOWN = 5
"""Most suspicious files that are listed by name."""
MOST_LISTED = 20
"""Most links out of the sources that are listed by name."""
SOURCES = click.argument("sources", nargs=-1, required=True, metavar="SRC...", type=click.Path(path_type=Path))
YES = click.option(
    "--yes", is_flag=True, help="Take files that look like secrets, and what links lead to, without being asked."
)
EXCLUDE = click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="Leave out files and folders of this name or path: '*.csv'."
)


def found_sources(
    given: tuple[Path, ...], yes: bool, without: tuple[Path, ...], exclude: tuple[str, ...] = ()
) -> Sources:
    """Survey the sources and print what will be read. Ask for consent to follow links that lead out of them, and to
    read files that look like secrets.

    `without`: files and folders of the command itself, which are skipped. Raises DataError, click.Abort for a no, and
    UsageError when there is no terminal to ask at."""
    from peer.data.sources import find

    agreed: set[str] = set()
    # A loop, because a folder that the user agreed to may contain more links.
    while (sources := find(given, without, exclude, agreed)).outside:
        for number, (link, target) in enumerate(sources.outside.items()):
            if number == MOST_LISTED:
                echo(f"and {len(sources.outside) - MOST_LISTED:,} more", err=True)
                break
            echo(f"leads out of the sources: {link} -> {target}", err=True)
        confirm("Take what these links lead to?", yes)
        agreed |= set(sources.outside.values())
    for package in sources.packages():  # a missing package fails now, not hours later at the first file that needs it
        importlib.import_module(package)
    echo(sources.survey.summary(), err=True)
    if sources.linked:
        echo(f"reached by links: {sources.linked:,} of these files", err=True)
    if suspicious := sources.survey.suspicious:
        for name in suspicious[:SHOWN]:
            echo(f"looks like a secret: {name}", err=True)
        if len(suspicious) > SHOWN:
            echo(f"and {len(suspicious) - SHOWN:,} more", err=True)
        echo("Others may read these texts back from the shards and from the model.", err=True)
        confirm("Take them?", yes)
    return sources


@contextlib.contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal. Yields a callback that takes the bytes read so far and the total."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
