"""Text from strangers is shown in a terminal without its control sequences taking effect."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peer.cli import main
from peer.node.control import ControlServer
from peer.run.home import Home

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202eback\r"
OBEYED = set("\x1b\x07\x9b\x7f\u202e\r")


@contextmanager
def daemon(home: Path, answer: dict[str, Any]) -> Iterator[None]:
    """Open a control socket that answers every request in the same way."""
    ready, done = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async def reply(command: str, request: dict[str, Any]) -> dict[str, Any]:
            return answer

        server = ControlServer(Home(home).control_socket, reply)
        await server.start()
        ready.set()
        await done.wait()
        await server.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(10)
        loop.close()


REFUSAL = {"seconds_ago": 3, "caller": HOSTILE, "code": "limit", "reason": f"because {HOSTILE}"}
REPORT = Path(__file__).parents[2] / "observe" / "status" / "training.json"
STATUS = json.loads(REPORT.read_text())
STATUS |= {"run": HOSTILE, HOSTILE: 1, "refusals": [REFUSAL], "reachable": {"value": False, "why": HOSTILE}}


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_status_shows_what_strangers_wrote_and_obeys_none_of_it(tmp_path: Path, options: list[str]) -> None:
    with daemon(tmp_path, STATUS):
        shown = CliRunner().invoke(main.peer, ["status", "--home", str(tmp_path), *options], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "because" in shown.output
    assert not OBEYED & set(shown.output)
    if options:
        assert json.loads(shown.output) == STATUS, "JSON is still the same words for a program"


def test_an_error_that_a_stranger_caused_is_told_the_same_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with daemon(tmp_path, {"error": "busy", "reason": HOSTILE}), pytest.raises(SystemExit) as stopped:
        main.main(["leave", "--home", str(tmp_path)])
    told = capsys.readouterr()
    assert stopped.value.code != 0
    assert "owned" in told.err
    assert not OBEYED & set(told.out + told.err)
