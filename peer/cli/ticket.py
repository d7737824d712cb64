"""`peer ticket`: make tickets and invitations, and show what a ticket holds."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peer.cli.invite import command as invite
from peer.cli.options import as_json, home, initial_peers
from peer.cli.printing import echo
from peer.errors import NotRunning, UsageError, for_shell
from peer.identity import load
from peer.user_folders import expand_user

if TYPE_CHECKING:
    from peer.observe.status.value import DaemonStatus

KEY = "Key file of a node that need not run yet: goes into the ticket with each --address."
ADDRESS = "Where the node of --identity-path will answer, e.g. /dns4/host.example/tcp/4810. Repeatable."
RUN = "Beginning of the run's id, for a home with several."
SHOW = "Show the run and the addresses in a ticket with: peer ticket show TICKET"
NEW = "Make a ticket with: peer ticket new   or, for a manifest and addresses: peer ticket new run.toml"


class TicketGroup(click.Group):
    """Explains the current commands to users of the former forms `peer ticket TICKET` and `peer ticket run.toml`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0].endswith(".toml"):
            raise UsageError("`peer ticket run.toml` is called `peer ticket new run.toml` now", NEW)
        if args[0].startswith("@") or "peersw" in args[0].lower():
            raise UsageError("`peer ticket TICKET` is called `peer ticket show TICKET` now", SHOW)
        return super().resolve_command(ctx, args)


@click.group("ticket", cls=TicketGroup)
def command() -> None:
    """Make a ticket for a run, show the contents of a ticket, and invite peers."""


command.add_command(invite)


class ShowCommand(click.Command):
    """Explains `peer ticket new` to users of the former form `peer ticket show --home HOME`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if any(word.partition("=")[0] in ("--home", "--run") for word in args):
            raise _show_needs_ticket()
        return super().parse_args(ctx, args)


def _show_needs_ticket() -> UsageError:
    return UsageError("`peer ticket show` shows what a TICKET holds. `peer ticket new` makes one", NEW)


@command.command(
    "show", cls=ShowCommand, epilog="Example: peer ticket show peersw…   or: peer ticket show @run.ticket --json"
)
@click.argument("ticket", required=False)
@as_json
def show(ticket: str | None, as_json: bool) -> None:
    """Show the run and the addresses in a TICKET (@FILE: the one in that file)."""
    from peer.run.ticket import Ticket

    if ticket is None:
        raise _show_needs_ticket()
    held = Ticket.named(ticket)
    if as_json:
        echo(json.dumps({"run_id": held.run_id.hex(), "addresses": list(held.addresses)}, indent=2))
    else:
        echo("\n".join([f"run      {held.run_id.hex()}", *(f"address  {it}" for it in held.addresses)]))


@command.command("new", epilog="Example: peer ticket new   or: peer ticket new run.toml --initial-peers /ip4/…")
@click.argument("manifest", metavar="[run.toml]", required=False, type=click.Path(path_type=Path))
@initial_peers
@click.option("--identity-path", type=click.Path(path_type=Path, dir_okay=False), help=KEY)
@click.option("--address", "addresses", multiple=True, metavar="MADDR", help=ADDRESS)
@home
@click.option("--run", default="", metavar="ID", help=RUN)
@as_json
def new(
    manifest: Path | None,
    initial_peers: tuple[str, ...],
    identity_path: Path | None,
    addresses: tuple[str, ...],
    home: Path,
    run: str,
    as_json: bool,
) -> None:
    """Make a ticket for the run of this home, with the addresses of its daemon and of peers that it has met.

    Any peer can do this, also when the operator's node is gone. Without a running daemon the ticket contains only the
    other peers' addresses. With a manifest file the ticket contains the addresses that you give: --initial-peers, or
    --address with the node's --identity-path. No address is dialled."""
    from peer.run.manifest import load_signed
    from peer.run.ticket import Ticket

    remarks: list[str] = []
    if manifest is None:
        if addresses or identity_path is not None:
            raise UsageError(
                "--address and --identity-path go with a manifest file", "Name it, too: peer ticket new run.toml"
            )
        run_id, found, remarks = _of_home(home, run)
    elif manifest.suffix != ".toml":
        raise UsageError(f"{str(manifest)[:80]} is no manifest file", f"{NEW}. {SHOW}")
    else:
        run_id, found = load_signed(manifest).run_id, _of_node(identity_path, addresses)
    made = Ticket(run_id, tuple(dict.fromkeys((*initial_peers, *found))))
    if as_json:
        told = {"ticket": made.encode(), "run_id": made.run_id.hex(), "addresses": list(made.addresses)}
        echo(json.dumps({**told, "remarks": remarks}, indent=2))
        return
    for line in (*(f"with {address}" for address in made.addresses), *remarks):
        echo(line, err=True)
    echo(made.encode())


def _of_node(key: Path | None, addresses: tuple[str, ...]) -> tuple[str, ...]:
    if (key is None) != (not addresses):
        raise UsageError("--identity-path and --address go together", "Name the node's key file and where it answers.")
    if key is None:
        return ()
    path = expand_user(key)
    advice = f"Name the node's key file. A new one is made with: peer id new --identity-path {for_shell(path)}"
    peer_id = load(path, advice).peer_id
    return tuple(f"{address}/p2p/{peer_id}" for address in addresses)


def _of_home(home: Path, run: str) -> tuple[bytes, tuple[str, ...], list[str]]:
    """Return the id of the home's run, addresses for the ticket, and remarks for the person who passes it on. Raises
    NotRunning and UsageError."""
    from peer.discovery.ticket_entries import entries_of, met_in

    status = None if run else _daemon_status(home)
    run_id = _kept_run(home, run) if status is None else bytes.fromhex(status.run_id)
    met = met_in(expand_user(home) / "runs" / run_id.hex()[:16] / "directory.json")
    addresses, reachable = ([], None) if status is None else (list(status.addresses), status.reachable.value)
    entries = entries_of(addresses, reachable, met)
    if not entries.addresses:
        raise UsageError(
            f"no address of a peer of run {run_id.hex()[:16]} is known here", "Make it while the daemon runs."
        )
    return run_id, entries.addresses, list(entries.remarks)


def _daemon_status(home: Path) -> DaemonStatus | None:
    """Return the status of the home's daemon. None: no daemon runs."""
    from peer.node.control import send_command
    from peer.observe.status.notices import read_status
    from peer.run.home import Home

    try:
        return read_status(asyncio.run(send_command(Home(home, make=False).control_socket, "status", 5.0)))
    except NotRunning:
        return None


def _kept_run(home: Path, run: str) -> bytes:
    """Return the id of the run whose manifest the home holds. Raises NotRunning and UsageError."""
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
