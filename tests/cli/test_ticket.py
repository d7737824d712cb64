"""Any peer of a run can make a ticket for it, also when the operator's node is down."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peer.cli.main import peer
from peer.discovery.address_cache import AddressCache
from peer.errors import NotRunning, PeerError, UsageError
from peer.identity import Identity
from peer.node.control import ControlServer
from peer.run.home import Home
from peer.run.ticket import Ticket

MANIFEST = b"format = 4\n"
RUN = hashlib.sha256(MANIFEST).digest()
ME, OTHER, THIRD = (Identity.generate().peer_id for _ in range(3))
OWN = f"/ip4/203.0.113.7/tcp/4810/p2p/{ME}"
MET = (f"/ip4/198.51.100.1/tcp/4811/p2p/{OTHER}", f"/ip4/127.0.0.1/tcp/4812/p2p/{THIRD}")
NOW = 1795648000.0


@contextmanager
def answering(home: Path, reachable: bool | None) -> Iterator[None]:
    """The control socket of a daemon that takes part in the run."""
    ready, stop, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()

    async def handle(command: str, request: dict[str, Any]) -> dict[str, Any]:
        return {"run_id": RUN.hex(), "addresses": [OWN], "reachable": {"value": reachable, "why": ""}}

    async def serve() -> None:
        server = ControlServer(Home(home).control_socket, handle)
        await server.start()
        ready.set()
        await stop.wait()
        await server.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(30)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Make a volunteer's home with the manifest of its run and the addresses of peers that it has met."""
    folder = Home(tmp_path).run(RUN)
    folder.manifest.write_bytes(MANIFEST)
    cache = AddressCache(folder.path / "directory.json", NOW)
    cache.record_seen(MET, NOW)
    cache.save(force=True)
    return tmp_path


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.discovery.ticket_entries.time.time", lambda: NOW + 60)


def shown(home: Path, *words: str) -> Result:
    result = CliRunner().invoke(peer, ["ticket", "new", "--home", str(home), *words])
    if isinstance(result.exception, PeerError):
        raise result.exception
    return result


@pytest.mark.parametrize("reachable", [True, None])
def test_a_volunteer_sees_its_own_address_and_makes_a_ticket(home: Path, reachable: bool | None) -> None:
    with answering(home, reachable):
        result = shown(home)
        told = json.loads(shown(home, "--json").stdout)
    assert Ticket.decode(result.stdout) == Ticket(RUN, (OWN, MET[0]))
    assert f"with {OWN}" in result.stderr
    assert told == {"ticket": result.stdout.strip(), "run_id": RUN.hex(), "addresses": [OWN, MET[0]], "remarks": []}


def test_whom_nobody_can_dial_names_others_first(home: Path) -> None:
    with answering(home, reachable=False):
        result = shown(home)
    assert Ticket.decode(result.stdout).addresses == (MET[0], OWN)
    assert "nobody gets through to this peer" in result.stderr


def test_without_a_daemon_the_home_is_read(home: Path) -> None:
    assert Ticket.decode(shown(home).stdout) == Ticket(RUN, (MET[0],))
    assert Ticket.decode(shown(home, "--run", RUN.hex()[:6]).stdout).run_id == RUN


def test_an_address_of_this_machine_alone_is_told(home: Path) -> None:
    folder = Home(home).run(RUN)
    (folder.path / "directory.json").unlink()
    cache = AddressCache(folder.path / "directory.json", NOW)
    cache.record_seen(MET[1:], NOW)
    cache.save(force=True)
    result = shown(home)
    assert Ticket.decode(result.stdout).addresses == MET[1:]
    assert "only this machine can use the ticket" in result.stderr


def test_what_is_missing_is_told(home: Path, tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="keeps no run"):
        shown(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    Home(home).run(b"z" * 32).manifest.write_bytes(b"format = 4\n# another\n")
    with pytest.raises(UsageError, match="keeps several runs"):
        shown(home)
    with pytest.raises(UsageError, match="no address of a peer"):
        shown(home, "--run", (b"z" * 32).hex()[:8])


def refused(*words: str) -> UsageError:
    result = CliRunner().invoke(peer, ["ticket", *words])
    assert isinstance(result.exception, UsageError), result.output
    return result.exception


def test_old_words_are_answered_with_the_new_ones(home: Path) -> None:
    ticket = shown(home).stdout.strip()
    for words in ((ticket,), (f"@{home / 'ticket'}",), (ticket, "--json")):
        assert "peer ticket show TICKET" in refused(*words).found
    for words in (("run.toml",), ("run.toml", "--initial-peers", OWN)):
        assert "peer ticket new run.toml" in refused(*words).found
    for words in (("show",), ("show", "--home", str(home)), ("show", "--run", "ab", "--json")):
        error = refused(*words)
        assert "`peer ticket new` makes one" in error.found
        assert "peer ticket new" in error.fix
    assert "peer ticket show TICKET" in refused("new", ticket).fix


def test_a_ticket_is_shown(home: Path) -> None:
    ticket = shown(home).stdout.strip()
    result = CliRunner().invoke(peer, ["ticket", "show", ticket])
    assert result.stdout.splitlines() == [f"run      {RUN.hex()}", f"address  {MET[0]}"]
