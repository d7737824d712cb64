"""`peer sweep`: run a grid of methods, settings and seeds."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import click

from peer.cli.options import as_json
from peer.cli.printing import echo


@click.command("sweep", epilog="Example: peer sweep grid.toml --jobs 2")
@click.argument("grid", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the results.  [default: the grid's name without .toml]",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    help="Swarms at a time.  [default: one for each core in virtual time, else 1]",
)
@as_json
def command(grid: Path, output: Path | None, jobs: int | None, as_json: bool) -> None:
    """Play every combination of a GRID: methods, values of settings, and seeds.

    Each swarm is one `peer compare`, whose result is stored in a file. An interrupted sweep continues where it stopped,
    and an extended grid plays only the new combinations. The table shows the mean loss of each combination with its 95
    % interval over the seeds. See `peer help compare-methods` for an example."""
    import asyncio

    from peer.cli.run import loop_factory
    from peer.lab.sweep import play, read_grid, sweep_table, swept
    from peer.user_folders import make_private

    cells = read_grid(grid)
    folder = output or grid.with_suffix("")
    make_private(folder)
    virtual = "--virtual" in cells[0].words
    many = jobs or ((os.cpu_count() or 1) if virtual else 1)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(play(cells, folder, many, functools.partial(echo, err=True)))
    finally:
        groups = list(swept(cells, folder))
        if groups:
            echo(json.dumps([group.to_json() for group in groups]) if as_json else sweep_table(groups))
