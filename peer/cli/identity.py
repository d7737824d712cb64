"""`peer id`: this peer's identity, and the key of an operator."""

from __future__ import annotations

import json
from pathlib import Path

import click

from peer import identity as identities
from peer.cli.options import as_json, home, identity_path
from peer.cli.telling import tell
from peer.errors import IdentityError
from peer.run.home import Home


@click.group("id")
def command() -> None:
    """Show or make identities: keys that are never overwritten. A peer's own is made on first use."""


@command.command("new", epilog="Example: peer id new --operator operator.key")
@click.option(
    "--operator",
    "path",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Make the key of an operator there, apart from any node.",
)
@as_json
def new(path: Path, as_json: bool) -> None:
    """Make an operator's key in a file of its own, to be kept offline. A file that is there is never overwritten.

    Sign manifests, amendments and delegations with it: --identity-path FILE. The node has another key, its home's."""
    if path.exists():
        raise IdentityError(f"{path} exists", "Choose another name. Nothing was overwritten.")
    identity = identities.load_or_create(path)
    if as_json:
        tell(json.dumps({"peer_id": identity.peer_id, "path": str(path)}))
    else:
        tell(f"{identity.peer_id}\nkey: {path}")
        tell("Keep a copy where no network reaches it: nothing else can amend your runs.", err=True)


@command.command("show", epilog="Example: peer id show --json")
@home
@identity_path
@as_json
def show(home: Path, identity_path: Path | None, as_json: bool) -> None:
    """Show the peer id and where the key lies (the key itself is never printed)."""
    path = identity_path or Home(home).identity
    identity = identities.load_or_create(path)
    if as_json:
        tell(json.dumps({"peer_id": identity.peer_id, "path": str(path)}))
    else:
        tell(f"{identity.peer_id}\nkey: {path}")
