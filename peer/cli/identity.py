"""`peer id`: make and show the key of a peer or of an operator."""

from __future__ import annotations

import json
from pathlib import Path

import click

from peer import identity as identities
from peer.cli.options import as_json, home, identity_path
from peer.cli.printing import echo
from peer.errors import IdentityError, for_shell
from peer.run.home import Home
from peer.user_folders import expand_user


@click.group("id")
def command() -> None:
    """Show or make identities. A key is never overwritten. A peer's own key is made on first use."""


@command.command("new", epilog="Example: peer id new --home ~/copied-home")
@click.option(
    "--operator",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Make the key of an operator there, apart from any node.",
)
@home
@identity_path
@as_json
def new(operator: Path | None, home: Path, identity_path: Path | None, as_json: bool) -> None:
    """Make a new key for this home, or with --operator FILE an operator's key in a separate file.

    A home that was copied to a second machine needs a new key there. The old key is kept beside the new one, and the
    model, the data and the journal stay. Sign manifests, amendments and delegations with an operator's key
    (--identity-path FILE), and keep it offline. The node uses another key, the one in its home."""
    if operator is not None:
        operator = expand_user(operator)
        if operator.exists():
            raise IdentityError(f"{operator} exists", "Choose another name. Nothing was overwritten.")
        _print_key(identities.load_or_create(operator), operator, as_json)
        if not as_json:
            echo("Keep a copy where no network reaches it: nothing else can amend your runs.", err=True)
        return
    owner = Home(home)
    path = expand_user(identity_path or owner.identity)
    with owner.lock(identity_path):
        former = identities.set_aside(path)
        identity = identities.load_or_create(path)
    if former is not None and not as_json:
        echo(f"the former key is kept as {former}", err=True)
    _print_key(identity, path, as_json)


@command.command("show", epilog="Example: peer id show --json")
@home
@identity_path
@as_json
def show(home: Path, identity_path: Path | None, as_json: bool) -> None:
    """Print the peer id and the path of the key file. The key itself is never printed."""
    if identity_path is None:
        path = Home(home).identity
        identity = identities.load_or_create(path)
    else:
        path = expand_user(identity_path)
        advice = f"Name a key file that exists, or make one with: peer id new --identity-path {for_shell(path)}"
        identity = identities.load(path, advice)
    _print_key(identity, path, as_json)


def _print_key(identity: identities.Identity, path: Path, as_json: bool) -> None:
    if as_json:
        echo(json.dumps({"peer_id": identity.peer_id, "path": str(path)}))
    else:
        echo(f"{identity.peer_id}\nkey: {path}")
