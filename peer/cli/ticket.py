"""`peer ticket`: what a ticket holds."""

from __future__ import annotations

import json

import click

from peer.cli.options import as_json, initial_peers


@click.command("ticket", epilog="Example: peer ticket peersw…   or: peer ticket run.toml --initial-peers /ip4/…")
@click.argument("ticket_or_manifest", metavar="TICKET|run.toml")
@initial_peers
@as_json
def command(ticket_or_manifest: str, initial_peers: tuple[str, ...], as_json: bool) -> None:
    """Show the run and the addresses in a TICKET; or make a ticket for a manifest file and --initial-peers."""
    from pathlib import Path

    from peer.run.manifest import load_signed
    from peer.run.ticket import Ticket

    if Path(ticket_or_manifest).suffix == ".toml":
        click.echo(Ticket(load_signed(Path(ticket_or_manifest)).run_id, initial_peers).encode())
        return
    ticket = Ticket.decode(ticket_or_manifest)
    if as_json:
        click.echo(json.dumps({"run_id": ticket.run_id.hex(), "addresses": list(ticket.addresses)}, indent=2))
        return
    click.echo(f"run      {ticket.run_id.hex()}")
    for address in ticket.addresses:
        click.echo(f"address  {address}")
