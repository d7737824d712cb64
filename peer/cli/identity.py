"""`peer id`: this peer's identity."""

from __future__ import annotations

import json
from pathlib import Path

import click

from peer import identity as identities
from peer.cli.options import as_json, home, identity_path
from peer.run.home import Home


@click.group("id")
def command() -> None:
    """Show this peer's identity: one key, made on first use and never overwritten."""


@command.command("show", epilog="Example: peer id show --json")
@home
@identity_path
@as_json
def show(home: Path, identity_path: Path | None, as_json: bool) -> None:
    """Show the peer id and where the key lies (the key itself is never printed)."""
    path = identity_path or Home(home).identity
    identity = identities.load_or_create(path)
    if as_json:
        click.echo(json.dumps({"peer_id": identity.peer_id, "path": str(path)}))
    else:
        click.echo(f"{identity.peer_id}\nkey: {path}")
