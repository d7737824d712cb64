"""`peer ticket`: what a ticket holds, and tickets made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from peer.cli.invite import command as invite
from peer.cli.options import as_json, initial_peers
from peer.cli.telling import tell
from peer.cli.ticket_show import command as show
from peer.errors import UsageError
from peer.identity import load_or_create

KEY = "Key file of a node that need not run yet: goes into the ticket with each --address."
ADDRESS = "Where the node of --identity-path will answer, e.g. /dns4/host.example/tcp/4810. Repeatable."


class TicketGroup(click.Group):
    """A command with an argument of its own, and commands below it."""

    allow_interspersed_args = True

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the arguments of the command below where its name comes first."""
        below = self.commands.get(args[0]) if args else None
        if below is None:
            return super().make_context(info_name, args, parent, **extra)
        return below.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)


@click.group(
    "ticket",
    cls=TicketGroup,
    invoke_without_command=True,
    no_args_is_help=False,
    epilog="Example: peer ticket peersw…   or: peer ticket run.toml --initial-peers /ip4/…",
)
@click.argument("ticket_or_manifest", metavar="TICKET|run.toml")
@initial_peers
@click.option("--identity-path", type=click.Path(path_type=Path, exists=True, dir_okay=False), help=KEY)
@click.option("--address", "addresses", multiple=True, metavar="MADDR", help=ADDRESS)
@as_json
def command(
    ticket_or_manifest: str,
    initial_peers: tuple[str, ...],
    identity_path: Path | None,
    addresses: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the run and the addresses in a TICKET (@FILE: the one in that file).

    Or make a ticket for a manifest file and addresses, which are not dialled. `peer ticket show` makes one from any
    peer of a run."""
    from peer.run.ticket import Ticket

    if making := Path(ticket_or_manifest).suffix == ".toml":
        from peer.run.manifest import load_signed

        ticket = Ticket(
            load_signed(Path(ticket_or_manifest)).run_id, (*initial_peers, *_of_node(identity_path, addresses))
        )
    else:
        ticket = Ticket.named(ticket_or_manifest)
    if as_json:
        report = {"run_id": ticket.run_id.hex(), "addresses": list(ticket.addresses)}
        tell(json.dumps({"ticket": ticket.encode(), **report} if making else report, indent=2))
    elif making:
        tell(ticket.encode())
    else:
        tell("\n".join([f"run      {ticket.run_id.hex()}", *(f"address  {it}" for it in ticket.addresses)]))


command.add_command(invite)
command.add_command(show)


def _of_node(key: Path | None, addresses: tuple[str, ...]) -> tuple[str, ...]:
    if (key is None) != (not addresses):
        raise UsageError("--identity-path and --address go together", "Name the node's key file and where it answers.")
    if key is None:
        return ()
    peer_id = load_or_create(key).peer_id
    return tuple(f"{address}/p2p/{peer_id}" for address in addresses)
