"""The bytes on the line that a daemon reports, compared with the bytes that its sockets transferred."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from peer.aio.tasks import background_task
from peer.observe import line_bytes
from peer.observe.line_bytes import LineBytes, LineMeter, estimated

NBYTES = 3_000_000
FAR_END = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as far:
    left = int(sys.argv[2])
    while left:
        left -= len(far.recv(65536))
    far.sendall(b"read")
    far.recv(1)
"""


@contextlib.contextmanager
def another_process(port: int) -> Iterator[None]:
    """Code of a process that connects, reads NBYTES, and answers."""
    command = [sys.executable, "-I", "-c", FAR_END, str(port), str(NBYTES)]
    with subprocess.Popen(command) as process:
        yield
        assert process.wait(90) == 0


def not_estimated() -> LineBytes:
    raise AssertionError("the kernel of the tests tells")


def meter(port: int) -> LineMeter:
    return LineMeter(lambda: (os.getpid(),), lambda: port, not_estimated)


def transfer(listener: socket.socket, counted: LineMeter) -> LineBytes:
    """Send NBYTES to another process, and return the count after it has read them."""
    with another_process(listener.getsockname()[1]):
        here, _ = listener.accept()
        with here:
            before = counted.read()
            here.sendall(bytes(NBYTES))
            assert here.recv(4) == b"read"
            after = counted.read()
    return LineBytes(after.sent - before.sent, after.received - before.received, after.measured)


@pytest.mark.processes
def test_what_a_connection_carried_is_counted_within_two_percent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = transfer(listener, meter(listener.getsockname()[1]))
    assert found.measured
    assert NBYTES < found.sent < 1.02 * NBYTES, "the headers of large loopback segments are few"
    assert 4 < found.received < 0.02 * NBYTES


@pytest.mark.processes
def test_a_connection_between_two_looks_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a connection of less than a tenth of a second, such as a reachability probe, would be missed between two
    readings."""
    monkeypatch.setattr(line_bytes, "SAMPLE_EVERY_S", 0.01)

    async def scenario(listener: socket.socket) -> int:
        counted = meter(listener.getsockname()[1])
        async with background_task(counted.watch()), asyncio.timeout(30):
            while not counted.latest.measured:
                await asyncio.sleep(0.01)
            with another_process(listener.getsockname()[1]), listener.accept()[0] as here:  # the loop stands still
                here.sendall(bytes(NBYTES))
                assert here.recv(4) == b"read"
            while not counted.latest.sent:
                await asyncio.sleep(0.01)
            return counted.latest.sent

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert NBYTES < asyncio.run(scenario(listener)) < 1.02 * NBYTES


@pytest.mark.processes
def test_a_local_server_such_as_the_page_is_not_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = transfer(listener, meter(port=1))
    assert (found.sent, found.received) == (0, 0)


def test_a_connection_inside_is_not_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        counted = meter(listener.getsockname()[1])
        with socket.create_connection(listener.getsockname()) as one, listener.accept()[0] as other:
            one.sendall(bytes(1000))
            assert other.recv(1000, socket.MSG_WAITALL) == bytes(1000)
            assert counted.read() == LineBytes(0, 0, measured=True)


@pytest.mark.processes
def test_another_program_is_not_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        counted = LineMeter(tuple, lambda: 0, not_estimated)
        assert transfer(listener, counted) == LineBytes(0, 0, measured=True)


def test_without_the_kernels_counts_it_is_estimated_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> list[line_bytes.TcpConnection]:
        raise OSError("sock_diag is refused")

    monkeypatch.setattr(line_bytes, "tcp_connections", refused)
    counted = LineMeter(tuple, lambda: 0, lambda: estimated(1_000_000, 0, 1000, 10))
    assert counted.read() == LineBytes(1_049_000, 80, measured=False)


def test_a_kernel_that_does_not_count_what_was_sent_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 4.19 the `tcp_info` of a connection is shorter. Once all connections were skipped, and 0 B was
    reported as measured."""
    whole = line_bytes._attribute

    def of_an_old_kernel(message: bytes, wanted: int) -> bytes | None:
        info = whole(message, wanted)
        return info and info[:192]

    monkeypatch.setattr(line_bytes, "_attribute", of_an_old_kernel)
    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_connection(here.getsockname()):
        assert LineMeter(tuple, lambda: 0, lambda: LineBytes(1, 2)).read() == LineBytes(1, 2, measured=False)
