"""`peer plot`: draw the loss curves of reports."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import click

from peer.cli.options import refuse_unwritable, writing
from peer.cli.printing import echo
from peer.installation import using_extra


@click.command("plot", epilog="Example: peer plot gossip.json diloco.json --output both.png")
@click.argument("reports", nargs=-1, required=True, metavar="REPORT...", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("loss.png"), show_default=True)
def command(reports: tuple[Path, ...], output: Path) -> None:
    """Draw the loss curves of REPORTs into one picture, .png or .svg.

    A REPORT is the JSON of peer compare --json, peer swarm --report or peer simulate --json, or the file of --log csv.
    The picture has one panel for each quantity that all reports contain: tokens, bytes, time, rounds. See `peer help
    compare-methods`."""
    refuse_unwritable(output, "--output", (".png", ".svg"))
    files = [report.absolute() for report in reports]
    # Importing matplotlib reads a `matplotlibrc` from the working folder, which may belong to somebody else.
    with using_extra("plots"), contextlib.chdir(os.sep):
        from peer.lab.report_plot import write_curves
    from peer.lab.report_curves import named_curves, read_report

    curves = named_curves({file: read_report(file) for file in files})
    with writing(output, "--output"):
        write_curves(curves, output)
    echo(f"wrote {output}: {len(curves)} curve{'s' if len(curves) > 1 else ''}")
