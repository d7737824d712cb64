"""`peer contribution`: show, export and verify the receipts that partners signed for this peer's work."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli.options import as_json, home
from peer.cli.printing import echo
from peer.errors import ReceiptsBroken, UsageError
from peer.run.home import RECEIPTS
from peer.user_folders import expand_user

if TYPE_CHECKING:
    from peer.protocol.messages import RunId
    from peer.protocol.pair.receipt import ReceiptBounds
    from peer.protocol.pair.receipt_chain import ChainCheck

FILE = click.Path(path_type=Path, dir_okay=False)
RUN = click.option("--run", default="", metavar="ID", help="Beginning of the run's id, for a home with several.")


@click.group("contribution")
def command() -> None:
    """Show, export and verify signed receipts of exchanges in pairs."""


@command.command("show", epilog="Example: peer contribution show --json")
@home
@RUN
@as_json
def show(home: Path, run: str, as_json: bool) -> None:
    """Verify the receipts of this peer and show them by partner."""
    from peer.observe.receipt_file import check_file
    from peer.transport.signing import holds

    _print_check(check_file(_chain(home, run), holds, partial(_bounds, home), unfinished=True)[0], as_json)


@command.command("export", epilog="Example: peer contribution export mine.receipts")
@click.argument("file", type=FILE)
@home
@RUN
def export(file: Path, home: Path, run: str) -> None:
    """Write the receipts in this home to FILE, so that others can verify them."""
    from peer.observe.receipt_file import copy_checked
    from peer.transport.signing import holds

    if file.exists():
        raise UsageError(f"{file} exists already", "Name a file that does not exist yet.")
    check = copy_checked(_chain(home, run), file, holds, partial(_bounds, home))
    echo(f"{check.entries} receipts of run {check.run_id.hex()} in {file}")


@command.command("verify", epilog="Example: peer contribution verify mine.receipts --json")
@click.argument("file", type=FILE)
@home
@as_json
def verify(file: Path, home: Path, as_json: bool) -> None:
    """Check every signature and hash in FILE, offline, and show its contents.

    If the home has the run's manifest, receipts that are impossible in that run are refused, too."""
    from peer.observe.receipt_file import check_file
    from peer.transport.signing import holds

    _print_check(check_file(file, holds, partial(_bounds, home))[0], as_json)


def _chain(home: Path, run: str) -> Path:
    """Return the receipt file of a run. `run`: beginning of the run's id; empty: the home's only run with receipts.
    Raises ReceiptsBroken when no file matches and UsageError when several do."""
    found = sorted(expand_user(home).glob(f"runs/*/{RECEIPTS}"))
    meant = [path for path in found if path.parent.name.startswith(run[:16])]
    if not meant:
        fix = "Take part in a run whose preset exchanges in pairs, or name another --home."
        raise ReceiptsBroken(f"no receipts{f' of run {run}' if run else ''} under {home}", fix)
    if len(meant) > 1:
        names = ", ".join(path.parent.name for path in meant)
        raise UsageError(f"{home} has receipts of several runs: {names}", "Name one of them with --run.")
    return meant[0]


def _bounds(home: Path, run_id: RunId) -> ReceiptBounds | None:
    """Return the limits for receipts of a run. None: the home does not have its manifest. Raises ManifestError."""
    from peer.run.costs import receipt_bounds
    from peer.run.home import Home
    from peer.run.manifest import load_signed
    from peer.run.resolve import method_of

    path = Home(expand_user(home)).run(run_id).manifest
    if not path.exists():
        return None
    signed = load_signed(path)
    if signed.run_id != run_id:  # the folder is of another run whose id begins alike
        return None
    manifest = signed.manifest
    return receipt_bounds(method_of(manifest.sync), manifest.model.parameters, manifest.rounds)


def _print_check(check: ChainCheck, as_json: bool) -> None:
    report = _report(check)
    if as_json:
        echo(json.dumps(report, indent=2))
        return
    echo(f"run       {report['run_id']}\npeer      {report['peer_id']}\nreceipts  {check.entries}", nl=False)
    echo(f", rounds {check.first_round} to {check.last_round}" if check.entries else "")
    if check.bounds is None:
        echo("          not checked against the run's manifest, which is not under this home")
    for partner in report["partners"]:
        echo(f"partner   {partner['peer_id']}")
        echo(f"          swaps {partner['rounds']}, accepted {partner['accepted']}", nl=False)
        echo(f" from it and {partner['accepted_by_it']} by it")
        echo(f"          bytes: {partner['bytes_received']:,} from it, {partner['bytes_sent']:,} to it")


def _report(check: ChainCheck) -> dict[str, Any]:
    return {
        "run_id": check.run_id.hex(),
        "peer_id": check.owner,
        "receipts": check.entries,
        "rounds": [check.first_round, check.last_round] if check.entries else [],
        "bounded": check.bounds is not None,
        "partners": [{"peer_id": peer, **asdict(totals)} for peer, totals in sorted(check.partners.items())],
    }
