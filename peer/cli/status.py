"""`peer status`: what the daemon of a home is doing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click

from peer.cli.options import home


@click.command("status", epilog="Example: peer status --json | jq .rounds")
@home
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(home: Path, as_json: bool) -> None:
    """Tell what the daemon under this home is doing: round, partner, peers, work done."""
    from peer.daemon.control import ask
    from peer.run.home import Home

    report = asyncio.run(ask(Home(home).control_socket, "status", 5.0))
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for key, value in report.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {number}" for name, number in value.items())
        elif isinstance(value, list):
            value = "".join(f"\n    {_entry(item)}" for item in value) or "none"
        elif isinstance(value, float):
            value = f"{value:.4g}"
        click.echo(f"{key.replace('_', ' '):>18}  {value}")


def _entry(item: object) -> str:
    if isinstance(item, dict):
        return "  ".join(str(value) for value in item.values())
    return str(item)
