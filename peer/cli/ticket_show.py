"""`peer ticket show`: a ticket from any peer of a run, for when the operator's node is gone."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import click

from peer.cli.options import as_json, home
from peer.cli.telling import tell
from peer.errors import NotRunning, UsageError
from peer.user_folders import expand_user

RUN = click.option("--run", default="", metavar="ID", help="Beginning of the run's id, for a home with several.")


@click.command("show", epilog="Example: peer ticket show   or: peer ticket show --home ~/second-peer --json")
@home
@RUN
@as_json
def command(home: Path, run: str, as_json: bool) -> None:
    """Make a ticket for the run of this home: with the addresses of its daemon, and of peers that it met.

    Any peer can do so, also when the operator's node is gone. Without a daemon the ticket holds the other peers'
    addresses alone. Nothing is dialled."""
    from peer.discovery.ticket_entries import entries_of, met_in
    from peer.run.ticket import Ticket

    report = {} if run else _asked(home)
    run_id = bytes.fromhex(report["run_id"]) if report else _kept_run(home, run)
    met = met_in(expand_user(home) / "runs" / run_id.hex()[:16] / "directory.json")
    entries = entries_of(report.get("addresses", []), report.get("reachable", {}).get("value"), met)
    if not entries.addresses:
        raise UsageError(
            f"no address of a peer of run {run_id.hex()[:16]} is known here", "Show it while the daemon runs."
        )
    ticket = Ticket(run_id, entries.addresses).encode()
    if as_json:
        told = {"ticket": ticket, "run_id": run_id.hex(), "addresses": list(entries.addresses)}
        tell(json.dumps({**told, "remarks": list(entries.remarks)}, indent=2))
        return
    for line in (*(f"with {address}" for address in entries.addresses), *entries.remarks):
        tell(line, err=True)
    tell(ticket)


def _asked(home: Path) -> dict[str, Any]:
    """Return the status of the home's daemon; empty: none runs."""
    from peer.node.control import ask
    from peer.run.home import Home

    try:
        return asyncio.run(ask(Home(home, make=False).control_socket, "status", 5.0))
    except NotRunning:
        return {}


def _kept_run(home: Path, run: str) -> bytes:
    """Return the id of the run that a home keeps the manifest of. Raises NotRunning and UsageError."""
    found = sorted(expand_user(home).glob("runs/*/manifest.toml"))
    meant = [path for path in found if path.parent.name.startswith(run[:16])]
    if not meant:
        raise NotRunning(
            f"no daemon answers under {home}, and it keeps no run{f' {run}' if run else ''}",
            "Name the home of a peer of the run with --home.",
        )
    if len(meant) > 1:
        names = ", ".join(path.parent.name for path in meant)
        raise UsageError(f"{home} keeps several runs: {names}", "Name one of them with --run.")
    return hashlib.sha256(meant[0].read_bytes()).digest()
