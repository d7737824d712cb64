"""`peer pause`: pause training on this machine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import click

from peer.cli.durations import Duration
from peer.cli.options import as_json, home
from peer.cli.printing import echo


@click.command("pause", epilog="Example: peer pause --for 2h")
@home
@click.option(
    "--for", "for_s", type=Duration(), help="Resume by itself after this, e.g. 90s, 30m, 2h.  [default: never]"
)
@as_json
def command(home: Path, for_s: float | None, as_json: bool) -> None:
    """Stop training within one step and begin no further exchange. A running exchange is completed.

    The work is kept, and other peers see that this peer is paused. The pause outlasts restarts and ends with `peer
    resume`."""
    from peer.node.control import send_command
    from peer.run.home import Home

    body = asyncio.run(send_command(Home(home, make=False).control_socket, "pause", 5.0, {"for_s": for_s}))
    echo(json.dumps(body, indent=2) if as_json else pause_text(body))


def pause_text(body: dict[str, Any]) -> str:
    """Return the daemon's answer to a pause or resume as text."""
    from peer.observe.status.codec import from_json
    from peer.observe.status.notices import pause_notice
    from peer.observe.status.value import PauseStatus

    ours = from_json(PauseStatus, body["paused"])
    lines = [pause_notice(ours).text if ours.holds else "training continues with the next round"]
    if body["paused_by_the_operator"] is not None:
        lines.append("the operator has paused the run: nobody trains until the operator resumes it")
    return "\n".join(lines)
