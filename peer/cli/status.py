"""`peer status`: show the status of a home's daemon."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import click

from peer.cli.options import home
from peer.cli.printing import echo


@click.command("status", epilog="Example: peer status --json | jq .rounds")
@home
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--ids", is_flag=True, help="The whole ids of the peers that it knows, one a line, to be copied.")
def command(home: Path, as_json: bool, ids: bool) -> None:
    """Show the status of this home's daemon: its activity, the run, training, exchanges, other peers, bytes, and the
    terms that you agreed to."""
    from peer.node.control import send_command
    from peer.observe.status.notices import read_status
    from peer.observe.status.text import status_text
    from peer.run.home import Home

    report = asyncio.run(send_command(Home(home, make=False).control_socket, "status", 5.0))
    status = read_status(report)
    if ids:
        known = [(peer.peer_id, peer.status) for peer in status.peers or ()]
        if not known and status.view is not None:
            known = [(line.peer_id, line.state) for line in status.view.peers]
        echo("\n".join(f"{peer}  {doing}".rstrip() for peer, doing in known))
        return
    echo(json.dumps(report, indent=2) if as_json else status_text(status, time.time()))
