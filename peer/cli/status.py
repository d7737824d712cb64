"""`peer status`: the status of a home's daemon."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click

from peer.cli.options import home
from peer.cli.telling import tell

ANSWERS = {True: "yes", False: "no", None: "not known"}


@click.command("status", epilog="Example: peer status --json | jq .rounds")
@home
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(home: Path, as_json: bool) -> None:
    """Show the daemon's status under this home: round, partner, peers, work done."""
    from peer.node.control import ask
    from peer.run.home import Home

    report = asyncio.run(ask(Home(home, make=False).control_socket, "status", 5.0))
    if as_json:
        tell(json.dumps(report, indent=2))
        return
    for key, value in report.items():
        tell(f"{key.replace('_', ' '):>18}  {_text(value)}")


def _text(value: object) -> str:
    """Write one value."""
    if isinstance(value, dict) and set(value) == {"value", "why"}:
        return f"{ANSWERS[value['value']]}: {value['why']}"
    if isinstance(value, dict):
        told = [f"{name.replace('_', ' ')} {_text(number)}" for name, number in value.items()]
        return ", ".join(told) or "none"
    if isinstance(value, list):
        return "".join(f"\n    {_entry(item)}" for item in value) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None or value == "" else str(value)


def _entry(item: object) -> str:
    if isinstance(item, dict) and {"what", "why"} <= set(item):
        return str(item["why"])
    if isinstance(item, dict):
        return "  ".join(", ".join(value) if isinstance(value, list) else _text(value) for value in item.values())
    return _text(item)
