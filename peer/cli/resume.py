"""`peer resume`: end a pause."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click

from peer.cli.options import as_json, home
from peer.cli.pause import pause_text
from peer.cli.printing import echo


@click.command("resume", epilog="Example: peer resume --home ~/second-peer")
@home
@as_json
def command(home: Path, as_json: bool) -> None:
    """End `peer pause`, or today's quiet hours. Training continues with the next round."""
    from peer.node.control import send_command
    from peer.run.home import Home

    told = asyncio.run(send_command(Home(home, make=False).control_socket, "resume", 5.0))
    echo(json.dumps(told, indent=2) if as_json else pause_text(told))
