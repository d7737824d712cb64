"""A node and its router: when the node requests a port, what its record then contains, and what survives a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.clock.run_clock import RunClock
from peer.membership.reachability import ReachabilityProbe
from peer.node import open as opened
from peer.node import port_mapping
from peer.node.port_mapping import owns, port_mapper, source_address
from peer.node.record import PeerAddress, describe_self
from peer.observe.status.codec import to_json
from peer.protocol.messages import PeerId, Probed, RunId, Status
from peer.protocol.swarm.port_lease import PortMapping, Surroundings
from peer.protocol.swarm.reachability import Question, Reachability
from peer.run.options import NodeOptions
from peer.transport.client.dialling import Dialler
from peer.transport.port_mapping.mapper import PortMapper


class Place:
    """A dialler in a home network."""

    def __init__(self, *, private: bool = False, seen: tuple[str, ...] = ()) -> None:
        self._private, self._seen = private, seen

    def private_run(self) -> bool:
        return self._private

    def seen_hosts(self) -> tuple[str, ...]:
        return self._seen


class Reach:
    """A reachability probe without answers."""

    def __init__(self) -> None:
        self.reachability = Reachability()


def mapper(
    wanted: bool = True, hosts: tuple[str, ...] = ("0.0.0.0",), private: bool = False, keep: Callable[[int], None] = id
) -> PortMapper:
    def told(port: int, why: str) -> None: ...

    place, reach = cast(Dialler, Place(private=private)), cast(ReachabilityProbe, Reach())
    return port_mapper(4811, hosts, place, reach, RunClock(), wanted=wanted, left_over=0, keep=keep, told=told)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"wanted": False}, "turned off (--no-port-mapping)"),
        ({"private": True}, "the run lies in a private network"),
        ({"hosts": ("127.0.0.1",)}, "this peer listens on this machine only"),
    ],
)
def test_why_no_router_is_asked_is_told(options: dict[str, Any], why: str) -> None:
    async def main() -> None:
        ours = mapper(**options)
        assert to_json(ours.report()) == {"value": False, "why": f"no router is asked: {why}"}
        assert ours.endpoints() == ()
        await ours.close()

    asyncio.run(main())


def test_without_the_library_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """On some machines the library has no wheel. The node must start without it."""

    async def main() -> None:
        monkeypatch.setattr(port_mapping, "source_address", lambda: "192.168.7.10")
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        ours = mapper()
        assert "pip install miniupnpc" in to_json(ours.report())["why"]
        await ours.close()

    asyncio.run(main())


def test_the_machines_own_addresses_are_known() -> None:
    assert owns("127.0.0.1")
    assert not owns("192.0.2.1")
    assert not owns("2001:db8::1")
    assert not owns("a name")
    source = source_address()
    assert source == "" or owns(source)


def test_a_router_is_asked_by_default_from_the_command_line_only(tmp_path: Path) -> None:
    assert not NodeOptions(home=tmp_path).port_mapping


def test_the_record_says_whether_it_is_mapped() -> None:
    def record(address: PeerAddress) -> bool:
        made = describe_self(address, status=Status.TRAINING, round_=0, tokens_per_s=0.0, now=0.0, lifetime_s=60.0)
        return made.mapped

    me, run = PeerId("a"), RunId(b"r" * 32)
    assert not record(PeerAddress(me, run, lambda: (), lambda: True))
    assert record(PeerAddress(me, run, lambda: (), lambda: True, lambda: True))


def test_the_routers_port_is_remembered_until_it_is_given_back(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    ports = opened._Ports(file)
    assert (ports.exchange, ports.mapped) == (0, 0)
    ports.keep(4811)
    ports.keep_mapped(31000)
    again = opened._Ports(file)
    assert (again.exchange, again.mapped) == (4811, 31000)
    again.keep(4811)
    assert opened._Ports(file).mapped == 31000
    again.keep(4812)
    assert opened._Ports(file).mapped == 0, "it led to another port of ours"
    file.write_text(json.dumps({"exchange": 4811}))
    assert (opened._Ports(file).exchange, opened._Ports(file).mapped) == (4811, 0)
    for damaged in ("", "[]", '{"exchange": "4811", "mapped": 99999}', "null"):
        file.write_text(damaged)
        assert (opened._Ports(file).exchange, opened._Ports(file).mapped) == (0, 0)


def test_a_port_that_nobody_tried_is_not_announced(tmp_path: Path) -> None:
    """The router's claim alone is not enough. Once a peer has connected through the port, it is listed first."""
    seen, mapped = "45.77.1.1", "45.77.1.1:31000"
    reach, dialler = Reach(), Dialler()
    place, probe = cast(Dialler, Place(seen=(seen,))), cast(ReachabilityProbe, reach)

    def told(port: int, why: str) -> None: ...

    hosts = ("0.0.0.0",)
    holder = port_mapper(4811, hosts, place, probe, RunClock(), wanted=False, left_over=0, keep=id, told=told)
    holder._lease.opened(PortMapping(port=31000, router="192.168.7.1"), Surroundings(), 0.0)
    local = SimpleNamespace(options=NodeOptions(home=tmp_path))
    directory = SimpleNamespace(addresses=lambda: ["/ip4/192.168.7.10/tcp/4810"])
    transport = SimpleNamespace(dialler=dialler)
    parts: list[Any] = [local, None, transport, directory, reach, 4811, holder, None, None, None]
    node = opened.OpenNode(*parts)
    assert holder.endpoints() == (mapped,), "others are asked about it"
    assert mapped not in node.endpoints()

    question = Question(PeerId("operator"), (mapped,), 0.0, trusted=True)
    reach.reachability.on_probed(question, Probed((mapped,), (mapped,), "", "45.77.2.1:4811"))
    assert node.endpoints()[0] == mapped
    assert holder.carries()
