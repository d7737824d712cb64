"""Every command prints through `peer.cli.printing`."""

from __future__ import annotations

import ast
from pathlib import Path

import peer.cli

ELSEWHERE = {
    "printing.py": "is that place",
    "run.py": "cleans its lines itself",
    "generate.py": "cleans only terminals",
    "help.py": "pages are ours, and rendered with colours",
}


def printed(text: str) -> list[str]:
    calls = (ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute | ast.Name))
    return [call for call in calls if call in {"click.echo", "click.secho", "print"}]


def test_no_command_prints_past_it() -> None:
    folder = Path(peer.cli.__path__[0])
    found = {path.name: printed(path.read_text()) for path in folder.glob("*.py") if path.name not in ELSEWHERE}
    assert {name: calls for name, calls in found.items() if calls} == {}
    assert printed("say = partial(click.echo, err=True); print(1)") == ["click.echo", "print"]
