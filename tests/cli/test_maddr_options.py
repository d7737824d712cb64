"""The options for addresses: repeated, from the environment, and invalid ones refused at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peer.cli.main import peer
from peer.errors import AddressError
from peer.identity import Identity
from peer.lab.localswarm.processes import QUIET
from peer.run.ticket import Ticket

PEERS = [f"/ip4/192.0.2.{n}/tcp/4001/p2p/{Identity.generate().peer_id}" for n in (1, 2, 3)]
TICKET = Ticket(b"r" * 32, (PEERS[0],)).encode()


def options_of(monkeypatch: pytest.MonkeyPatch, *arguments: str, env: dict[str, str] | None = None) -> Any:
    """Return the options with which `peer join TICKET …` would run a daemon."""
    seen: list[Any] = []

    @contextlib.asynccontextmanager
    async def early_trainer(folder: Path, threads: int) -> AsyncIterator[None]:
        yield None

    async def run_peer(options: Any, *more: Any) -> int:
        seen.append(options)
        return 0

    def run_daemon(main: Coroutine[Any, Any, int]) -> None:
        assert asyncio.run(main) == 0

    monkeypatch.setattr("peer.node.peer.run_peer", run_peer)
    monkeypatch.setattr("peer.trainer.prestart.early_trainer", early_trainer)
    monkeypatch.setattr("peer.cli.run.run_daemon", run_daemon)
    result = CliRunner(env=env).invoke(peer, ["join", TICKET, *arguments])
    assert result.exit_code == 0, result.output
    return seen[0]


def test_they_reach_the_daemon_and_the_ticket_adds_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(
        monkeypatch,
        *("--initial-peers", PEERS[1], "--initial-peers", PEERS[2]),
        *("--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--host-maddrs", "/ip6/::1/tcp/0"),
        *("--announce-maddrs", "/ip6/2001:db8::1/tcp/4810", "--announce-maddrs", "/dns4/host.example/tcp/4810"),
    )
    assert set(options.initial_peers) == set(PEERS)
    assert options.host_maddrs == ("/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0")
    assert options.announce_maddrs == ("/ip6/2001:db8::1/tcp/4810", "/dns4/host.example/tcp/4810")


def test_they_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {
        "PEER_INITIAL_PEERS": f"{PEERS[1]} {PEERS[2]}",
        "PEER_HOST_MADDRS": "/ip6/::/tcp/4810",
        "PEER_ANNOUNCE_MADDRS": "/ip4/203.0.113.7/tcp/4810",
    }
    options = options_of(monkeypatch, env=env)
    assert set(options.initial_peers) == set(PEERS)
    assert options.host_maddrs == ("/ip6/::/tcp/4810",)
    assert options.announce_maddrs == ("/ip4/203.0.113.7/tcp/4810",)


def test_the_router_is_asked_unless_the_volunteer_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEER_PORT_MAPPING", raising=False)
    assert options_of(monkeypatch).port_mapping
    assert not options_of(monkeypatch, "--no-port-mapping").port_mapping
    assert not options_of(monkeypatch, env={"PEER_PORT_MAPPING": "no"}).port_mapping
    assert options_of(monkeypatch, "--port-mapping", env={"PEER_PORT_MAPPING": "no"}).port_mapping


def test_a_swarm_on_one_machine_asks_no_router(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not options_of(monkeypatch, env=QUIET).port_mapping


@pytest.mark.parametrize("command", [["join", TICKET], ["bootstrap", "run.toml"]])
@pytest.mark.parametrize(
    ("option", "value", "fix"),
    [
        ("--initial-peers", "192.0.2.1:4001", "/p2p/12D3Koo"),
        ("--initial-peers", "/ip4/192.0.2.1/tcp/4001", "/p2p/12D3Koo"),
        ("--host-maddrs", "/ip4/0.0.0.0/udp/4001/quic-v1", "/ip4/0.0.0.0/tcp/4001"),
        ("--host-maddrs", "/ip6/127.0.0.1/tcp/0", "/ip6/::/tcp/4001"),
        ("--announce-maddrs", "/ip4/192.0.2.1/tcp/0", "with the port others dial"),
        ("--announce-maddrs", "host.example", "/dns4/host.example/tcp/4001"),
    ],
)
def test_a_bad_one_is_an_address_error_with_its_fix(command: list[str], option: str, value: str, fix: str) -> None:
    for arguments, env in (([option, value], {}), ([], {f"PEER_{option[2:].replace('-', '_').upper()}": value})):
        result = CliRunner(env=env).invoke(peer, [*command, *arguments])
        assert isinstance(result.exception, AddressError), result.output
        assert result.exception.exit_code == 31
        assert value in result.exception.found
        assert fix in result.exception.fix
