"""`peer ticket`: what a ticket holds, and tickets made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import click

from peer.cli.options import as_json, initial_peers


@click.command("ticket", epilog="Example: peer ticket peersw…   or: peer ticket run.toml --initial-peers /ip4/…")
@click.argument("ticket_or_manifest", metavar="TICKET|run.toml")
@initial_peers
@as_json
def command(ticket_or_manifest: str, initial_peers: tuple[str, ...], as_json: bool) -> None:
    """Show the run and the addresses in a TICKET; or make a ticket for a manifest file and --initial-peers."""
    from peer.run.manifest import load_signed
    from peer.run.ticket import Ticket

    if making := Path(ticket_or_manifest).suffix == ".toml":
        ticket = Ticket(load_signed(Path(ticket_or_manifest)).run_id, initial_peers)
    else:
        ticket = Ticket.decode(ticket_or_manifest)
    if as_json:
        report = {"run_id": ticket.run_id.hex(), "addresses": list(ticket.addresses)}
        click.echo(json.dumps({"ticket": ticket.encode(), **report} if making else report, indent=2))
    elif making:
        click.echo(ticket.encode())
    else:
        click.echo("\n".join([f"run      {ticket.run_id.hex()}", *(f"address  {it}" for it in ticket.addresses)]))
