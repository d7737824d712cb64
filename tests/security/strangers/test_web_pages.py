"""Strangers at the HTTP servers of a real `peer bootstrap`: its page and its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from peer import identity as identities
from peer.lab.localswarm.processes import Daemon, start_bootstrap
from peer.run.home import Home
from peer.run.manifest import default_text, sign_text

pytestmark = pytest.mark.processes

GREEDY, OTHER = "127.0.0.1", "127.0.0.9"
CONNECTIONS, STREAMS = 256, 100
ANSWER_S = 5.0


class Ports(NamedTuple):
    page: int
    metrics: int


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    folder = tmp_path_factory.mktemp("node")
    node = Daemon("bootstrap", folder / "home")
    sign_text(default_text(), identities.load_or_create(Home(node.home).identity), folder / "run.toml")
    with asyncio.Runner() as runner:
        more = ("--web", "127.0.0.1:0", "--metrics-port", "0")
        runner.run(start_bootstrap(node, folder / "run.toml", 1, more=more))
        try:
            yield Ports(port_in(node.log, "page"), port_in(node.log, "metrics"))
        finally:
            runner.run(node.stop(10.0))


def port_in(log: Path, name: str) -> int:
    """Return the port of an address in the log. The ticket is written before the pages open."""
    line, until = re.compile(rf"{name}: http://127\.0\.0\.1:(\d+)/"), time.monotonic() + 60
    while (found := line.search(log.read_text())) is None:
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)
    return int(found[1])


def connected(port: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), ANSWER_S, (source, 0))


def status_of(port: int, path: str, source: str, host: str = "127.0.0.1") -> int:
    """Return the status of a response; 0: there is none."""
    with contextlib.suppress(OSError), connected(port, source) as line:
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return int(line.recv(12).partition(b" ")[2] or 0)
    return 0


def crowd(port: int, many: int, request: bytes) -> list[socket.socket]:
    """Open connections of one address that send a request, read the start of the response, and then send a single
    byte."""
    ends = [connected(port, GREEDY) for _ in range(many)]
    for one in ends:
        one.sendall(request)
    for one in ends:
        with contextlib.suppress(OSError):
            one.recv(12)
            one.sendall(b"G")
    return ends


@pytest.mark.parametrize("which", ["page", "metrics"])
def test_idle_connections_of_one_address_leave_places_to_others(ports: Ports, which: str) -> None:
    port, path = (ports.page, "/") if which == "page" else (ports.metrics, "/healthz")
    with contextlib.ExitStack() as stack:
        for one in crowd(port, CONNECTIONS, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()):
            stack.enter_context(one)
        assert [status_of(port, path, OTHER) for _ in range(3)] == [200] * 3


def test_event_streams_of_one_address_leave_places_to_others(ports: Ports) -> None:
    with contextlib.ExitStack() as stack:
        for one in crowd(ports.page, STREAMS, b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
            stack.enter_context(one)
        assert status_of(ports.page, "/api/events", GREEDY) == 503, "all streams are taken"
        assert status_of(ports.page, "/api/events", OTHER) == 200


@pytest.mark.parametrize("which", ["page", "metrics"])
def test_a_name_that_was_made_to_mean_this_machine_reads_nothing(ports: Ports, which: str) -> None:
    """DNS rebinding: a browser requests our address under the host name of a foreign page."""
    port, path = (ports.page, "/api/snapshot") if which == "page" else (ports.metrics, "/metrics")
    assert status_of(port, path, OTHER, f"evil.example:{port}") == 421
    assert status_of(port, path, OTHER, f"localhost:{port}") == 200
