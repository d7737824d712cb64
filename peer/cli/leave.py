"""`peer leave`: end the daemon of a home in order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from peer.cli.options import home
from peer.cli.printing import echo


@click.command("leave", epilog="Example: peer leave --home ~/second-peer")
@home
def command(home: Path) -> None:
    """Ask the daemon of this home to drain and end, as one Ctrl+C does. No work is lost."""
    from peer.node.control import send_command
    from peer.run.home import Home

    answer = asyncio.run(send_command(Home(home, make=False).control_socket, "leave", 5.0))
    echo(f"leaving: {answer['told']}" if "told" in answer else "leaving")
