from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from peer.cli.durations import Duration
from peer.cli.main import peer
from peer.node.control import ControlServer
from peer.observe.status.codec import to_json
from peer.rounds.pause import LocalPause
from peer.run.home import Home


@contextmanager
def answering(home: Path, operators: str | None = None) -> Iterator[LocalPause]:
    """A control socket that handles pauses like a daemon."""
    rest, ready, stop = LocalPause(), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def handle(command: str, request: dict[str, Any]) -> dict[str, Any]:
        if command == "pause":
            rest.pause(request.get("for_s"))
        else:
            rest.resume()
        return {"paused": to_json(rest.report()), "paused_by_the_operator": operators}

    async def serve() -> None:
        server = ControlServer(Home(home).control_socket, handle)
        await server.start()
        ready.set()
        await stop.wait()
        await server.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield rest
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def call(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(peer, [*arguments, "--home", str(home)], catch_exceptions=False)


def test_pause_and_resume(tmp_path: Path) -> None:
    with answering(tmp_path) as rest:
        assert "paused by you since" in call(tmp_path, "pause").output
        assert rest.active.is_set()
        assert call(tmp_path, "resume").output == "training continues with the next round\n"
        assert not rest.active.is_set()
        told = json.loads(call(tmp_path, "pause", "--for", "2h", "--json").output)
        assert told["paused"]["until"] - told["paused"]["since"] == pytest.approx(7200, abs=1)


def test_the_operators_pause_is_told_too(tmp_path: Path) -> None:
    with answering(tmp_path, operators="lunch"):
        assert "the operator has paused the run" in call(tmp_path, "resume").output


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("0.5h", 1800)]
)
def test_times_as_people_write_them(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "2x", "2h!", "0s", "1e9h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)
