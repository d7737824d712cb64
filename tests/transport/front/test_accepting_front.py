"""The accepting front before a server that only listens: which frames pass, which close the connection, and how much is
buffered."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar

import pytest
import uvloop
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from peer.identity import Identity
from peer.protocol.messages import PathKind, PeerId, Way
from peer.protocol.wire.http2 import CONTINUATION, DATA, PING, WINDOW_UPDATE
from peer.transport.front.callers import FrontLimits
from peer.transport.front.session import FrontSession
from peer.transport.front.tls_end import PIECE, SILENT, TlsEnd, TlsRefused
from peer.transport.relay.pipe import Stream
from peer.transport.tls import RenewedLeaf, leaf_for, root_of, server_context, server_name
from tests.support.behind_front import (
    ACKNOWLEDGED,
    GREETING,
    Behind,
    anybody,
    behind,
    echo,
    frame,
    is_over,
    request,
    speaking,
    until,
)

Run = Callable[[Coroutine[Any, Any, None]], None]
ONE_READ = 2**18
MOST_SEALED = 2**12
"""Bytes that TLS adds to one read, with some to spare."""
BIG = 8 * 2**20
DAY_S = 86_400.0


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run on uvloop, as daemons do and most tests do not."""
    return lambda test: request.param(asyncio.wait_for(test, 20))


def only(front: Behind) -> FrontSession:
    """Return the session of the only caller."""
    (session,) = front.front._sessions
    return session


def admit(front: Behind) -> None:
    """Give the only caller a key and an admitted call."""
    (seen_as,) = front.table._inside
    front.table.greeted(seen_as, PeerId("caller"), proven=False)
    front.table.calling(seen_as).__enter__()


def many_frames(nbytes: int) -> bytes:
    """Return DATA frames of stream 1 with `nbytes` in total, headers included."""
    whole, rest = divmod(nbytes, 9 + 2**14)
    said = frame(DATA, bytes(2**14), stream=1) * whole
    return said + (frame(DATA, bytes(rest - 9), stream=1) if rest > 9 else b"")


def test_all_passes_both_ways(run: Run) -> None:
    async def main() -> None:
        said = many_frames(BIG)
        async with behind(speaking(echo)) as front:
            reader, writer = await front.greet()
            writer.write(request(1))
            assert await reader.readexactly(len(request(1))) == request(1)
            admit(front)
            writer.write(said)
            assert await reader.readexactly(len(said)) == said
            writer.close()
            await until(lambda: len(front.table) == 0)

    run(main())


def test_all_passes_in_single_bytes_of_records_and_of_frames(run: Run) -> None:
    async def main() -> None:
        async with behind(speaking(echo)) as front:
            into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
            tls.set_alpn_protocols(["h2"])
            end = tls.wrap_bio(into, out)
            reader, writer = await front.call(tls=False)
            heard = bytearray()

            async def trickle() -> None:
                for one in out.read():
                    writer.write(bytes([one]))
                    await writer.drain()
                    await asyncio.sleep(0)

            async def hear(nbytes: int) -> None:
                while len(heard) < nbytes:
                    try:
                        heard.extend(end.read(2**16))
                    except ssl.SSLWantReadError:
                        into.write(await reader.read(2**16))

            while True:
                try:
                    end.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await trickle()
                    into.write(await reader.read(2**16))
            for one in GREETING:  # a record for each byte
                end.write(bytes([one]))
            await trickle()
            await hear(9)
            said = request(1) + frame(DATA, b"said", stream=1) + frame(PING, bytes(8))
            for one in ACKNOWLEDGED + said:
                end.write(bytes([one]))
            await trickle()
            await hear(9 + len(said))
            assert heard[9:] == said
            writer.close()

    run(main())


def test_a_server_that_does_not_read_makes_the_caller_wait(run: Run) -> None:
    async def main() -> None:
        read_on, heard = asyncio.Event(), 0

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal heard
            await read_on.wait()
            while chunk := await reader.read(2**16):
                heard += len(chunk)
            writer.close()

        async with behind(speaking(slow)) as front:
            _, writer = await front.greet()
            writer.write(request(1))
            await until(lambda: bool(front.table._inside))
            admit(front)
            writer.write(many_frames(BIG))
            session = only(front)
            await until(lambda: session.outer.paused)
            assert session.inner.held <= front.front.limits.buffer + ONE_READ + PIECE
            assert session.outer.transport is not None
            assert not session.outer.transport.is_reading()
            read_on.set()
            await until(lambda: heard == len(request(1)) + len(many_frames(BIG)))
            writer.close()

    run(main())


def test_a_caller_that_does_not_read_makes_the_server_wait(run: Run) -> None:
    async def main() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes(BIG))
            await writer.drain()
            await reader.read()
            writer.close()

        async with behind(speaking(talk)) as front:
            reader, writer = await front.greet()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            session = only(front)
            await until(lambda: session.inner.paused)
            assert session.outer.held <= front.front.limits.buffer + ONE_READ + MOST_SEALED
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert len(await reader.readexactly(BIG)) == BIG
            writer.close()

    run(main())


def test_a_caller_counts_before_it_says_a_word_and_leaves_in_time(run: Run) -> None:
    async def main() -> None:
        calls = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal calls
            calls += 1

        async with behind(serve, FrontLimits(connections=3, reserve=1, greet_s=0.3)) as front:
            silent = [await front.call(tls=False), await front.call()]
            await until(lambda: len(front.table) == 2)
            turned_away, _ = third = await front.call(tls=False)
            assert await is_over(turned_away)
            assert calls == 0, "nothing was said beyond TLS, so nothing was connected inside"
            for reader, _ in silent:
                assert await is_over(reader)
            assert len(front.table) == 0
            for _, writer in [*silent, third]:
                writer.close()

    run(main())


def test_one_that_proved_a_key_stays(run: Run) -> None:
    async def main() -> None:
        async with behind(speaking(echo), FrontLimits(connections=3, reserve=1, greet_s=0.3)) as front:
            reader, writer = await front.greet()
            silent, other = await front.call()
            (seen_as,) = front.table._inside
            front.table.greeted(seen_as, PeerId("caller"), proven=False)
            assert await is_over(silent)
            writer.write(frame(PING, bytes(8)))
            assert await reader.readexactly(17) == frame(PING, bytes(8))
            for one in (writer, other):
                one.close()

    run(main())


def test_a_caller_hears_an_end_when_nobody_listens_inside(run: Run) -> None:
    async def main() -> None:
        async with behind(None) as front:
            reader, writer = await front.call()
            writer.write(GREETING)
            assert await is_over(reader)
            writer.close()
            await until(lambda: len(front.table) == 0)

    run(main())


def test_a_connection_inside_that_ends_at_once_ends_the_callers_too(run: Run) -> None:
    async def main() -> None:
        async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.abort()

        async with behind(drop) as front:
            for _ in range(20):
                reader, writer = await front.call()
                writer.write(GREETING)
                assert await is_over(reader)
                writer.close()
            await until(lambda: len(front.table) == 0)

    run(main())


def test_callers_that_leave_at_any_moment_leave_nothing(run: Run) -> None:
    async def main() -> None:
        async with behind(speaking(echo)) as front:
            for number in range(40):
                with socket.create_connection(("127.0.0.1", front.port)) as caller:
                    caller.sendall(b"\x16\x03\x01\x02\x00")
                    if number % 2:
                        await asyncio.sleep(0)
                _, writer = await front.call()
                writer.write(GREETING)
                if number % 2:
                    await asyncio.sleep(0)
                writer.transport.abort()
            await until(lambda: not front.front._sessions)
            assert len(front.table) == 0
            assert not front.table._inside
            assert front.table._held_together == 0

    run(main())


def test_one_end_does_not_wait_for_the_other_for_ever(run: Run) -> None:
    async def main() -> None:
        async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"bye")
            writer.close()

        async with behind(speaking(leave), FrontLimits(linger_s=0.3)) as front:
            reader, writer = await front.greet()
            assert await reader.readexactly(3) == b"bye"
            await until(lambda: len(front.table) == 0)  # although this caller has not closed its connection
            writer.close()

    run(main())


def test_close_ends_all_that_is_under_way(run: Run) -> None:
    async def main() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()

        async with behind(silent) as front:
            ends = [await front.call() for _ in range(10)]
            for number, (_, writer) in enumerate(ends):
                if number % 2:
                    writer.write(GREETING)
            await until(lambda: len(front.table) == 10)
            await front.front.close()
            assert not front.front._sessions
            for reader, writer in ends:
                assert await is_over(reader)
                writer.close()
            with pytest.raises(ConnectionRefusedError):
                await front.call()

    run(main())


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", b"\x16\x03\x01\x00\x05hello", b"\x17"], ids=repr
)
def test_what_is_neither_tls_nor_a_circuit_is_hung_up_on(run: Run, said: bytes) -> None:
    async def main() -> None:
        async with behind(None) as front:
            reader, writer = await front.call(tls=False)
            writer.write(said)
            with contextlib.suppress(ConnectionError):
                assert len(await reader.read()) < 16, "an alert at most"
            writer.close()

    run(main())


def test_a_caller_that_does_not_name_http2_is_hung_up_on(run: Run) -> None:
    async def main() -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        async with behind(None) as front:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", front.port, ssl=tls)
                assert await is_over(reader)
                writer.close()
            await until(lambda: len(front.table) == 0)

    run(main())


def test_what_a_caller_sends_too_often_makes_it_wait_and_then_ends_it(run: Run) -> None:
    async def main() -> None:
        async with behind(speaking(echo)) as front:
            reader, writer = await front.greet()
            await until(lambda: bool(front.table._inside))
            writer.write(frame(PING, bytes(8)) * 70)
            session = only(front)
            await until(lambda: session.outer.paused)
            assert not session.refused
            writer.write(frame(PING, bytes(8)) * 700)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while await reader.read(2**16):
                    continue
            assert session.refused == "too many frames"
            writer.close()

    run(main())


def test_callers_together_hold_no_more_than_their_bound_and_the_largest_goes_first(run: Run) -> None:
    async def main() -> None:
        limits = FrontLimits(held=3 * 2**17 + 2**15)
        async with behind(speaking(echo), limits) as front:
            ends = [await front.greet() for _ in range(3)]
            for reader, writer in ends:
                writer.write(request(1))
                await reader.readexactly(len(request(1)))
            ends[1][1].write(frame(DATA, bytes(2**14), stream=1) * 3)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while await ends[1][0].read(2**16):
                    continue
            assert len(front.table) == 2
            for reader, writer in (ends[0], ends[2]):
                writer.write(frame(PING, bytes(8)))
                await reader.readexactly(17)
                writer.close()
            ends[1][1].close()

    run(main())


def test_frames_of_a_block_that_is_used_up_end_the_connection_that_sends_them(run: Run) -> None:
    async def main() -> None:
        async with behind(speaking(echo)) as front:
            (_, loud), (reader, quiet) = [await front.greet() for _ in range(2)]
            await until(lambda: len(front.table._inside) == 2)
            block = next(iter(front.table._blocks.values()))
            block.frames.level = 0.0
            loud.write(frame(WINDOW_UPDATE, b"\0\0\0\1") * 60)
            await until(lambda: len(front.table) == 1)
            quiet.write(frame(PING, bytes(8)))
            await reader.readexactly(17)
            for writer in (loud, quiet):
                writer.close()

    run(main())


# -- TLS without I/O ---------------------------------------------------------------------------------------------------


class Pair:
    """Both ends of a TLS connection in memory."""

    def __init__(self, secrets: Path | None = None) -> None:
        identity = Identity.generate()
        self.context = server_context(*leaf_for(identity, datetime.datetime.now(datetime.UTC)))
        self.server = TlsEnd(self.context)
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust.load_verify_locations(cadata=root_of(identity.public_key).decode())
        trust.set_alpn_protocols(["h2"])
        if secrets is not None:
            trust.keylog_filename = str(secrets)
        self.client = TlsEnd(trust, server_name(identity.public_key))
        self.plain = memoryview(bytearray(2**19))
        self.client.begin()
        for _ in range(2):
            self.server.receive(memoryview(self.client.outgoing()), self.plain)
            self.client.receive(memoryview(self.server.outgoing()), self.plain)
        assert self.server.established
        assert self.client.established


def test_a_new_leaf_is_taken_when_the_last_one_is_a_day_old() -> None:
    now = [0.0]
    leaf = RenewedLeaf(Identity.generate(), lambda: now[0])
    contexts = []
    for later in (0.0, 0.9 * DAY_S, 0.2 * DAY_S, 0.1 * DAY_S):
        now[0] += later
        contexts.append(leaf.context())
    assert contexts[0] is contexts[1] is not contexts[2] is contexts[3]


@pytest.mark.parametrize("step", [1, 5, 22, 1000, 2**18])
def test_plaintext_does_not_depend_on_how_records_arrive(step: int) -> None:
    both, said = Pair(), bytes(range(256)) * 80
    sealed = both.client.encrypt(memoryview(said))
    heard = bytearray()
    for start in range(0, len(sealed), step):
        nbytes = both.server.receive(memoryview(sealed[start : start + step]), both.plain)
        heard += both.plain[:nbytes]
    assert heard == said


class Updating:
    """The client's direction of a TLS connection, which updates its key with every record (RFC 8446, section 7.2)."""

    LENGTHS: ClassVar = {"TLS_AES_128_GCM_SHA256": (hashes.SHA256, 16), "TLS_AES_256_GCM_SHA384": (hashes.SHA384, 32)}

    def __init__(self, cipher: str, secret: bytes) -> None:
        self._hash, self._key_bytes = self.LENGTHS[cipher]
        self._secret = secret

    def _expand(self, label: str, nbytes: int) -> bytes:
        full = b"tls13 " + label.encode()
        info = struct.pack(">HB", nbytes, len(full)) + full + b"\0"
        return HKDFExpand(self._hash(), nbytes, info).derive(self._secret)

    def record(self) -> bytes:
        """Return a record with only a key update, which requests none in return."""
        header = struct.pack(">BHH", 23, 0x0303, 5 + 1 + 16)
        inner = b"\x18\0\0\x01\0" + b"\x16"
        sealed = AESGCM(self._expand("key", self._key_bytes)).encrypt(self._expand("iv", 12), inner, header)
        self._secret = self._expand("traffic upd", self._hash.digest_size)
        return header + sealed


def test_a_flood_of_key_updates_is_refused(tmp_path: Path) -> None:
    both = Pair(tmp_path / "secrets")
    (secret,) = re.findall(r"CLIENT_TRAFFIC_SECRET_0 \w+ (\w+)", (tmp_path / "secrets").read_text())
    cipher = both.client._tls.cipher()
    assert cipher is not None
    flood = Updating(cipher[0], bytes.fromhex(secret))
    for _ in range(SILENT - 2):
        assert both.server.receive(memoryview(flood.record()), both.plain) == 0, "some are allowed"
    with pytest.raises(TlsRefused, match="without data"):
        both.server.receive(memoryview(b"".join(flood.record() for _ in range(3))), both.plain)


def test_records_with_data_are_not_counted_as_silent() -> None:
    both = Pair()
    silent = both.server._silent
    for _ in range(3 * SILENT):
        both.server.receive(memoryview(both.client.encrypt(memoryview(b"data"))), both.plain)
    assert both.server._silent == silent


def test_a_handshake_that_does_not_end_is_refused() -> None:
    both = Pair()
    end, hello = TlsEnd(both.context), b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\xff" + bytes(2**14 - 4)
    assert end.receive(memoryview(hello), both.plain) == 0
    with pytest.raises(TlsRefused, match="too long"):
        end.receive(memoryview(hello), both.plain)


# -- circuits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [False, True], ids=["its bytes come later", "its bytes are there already"])
def test_the_called_end_of_a_circuit_ends_tls_and_walks_frames_too(run: Run, early: bool) -> None:
    async def main() -> None:
        served = list[asyncio.Task[None]]()

        async with behind(speaking(echo)) as front:

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                stream = Stream.of(reader, writer)
                while early and not reader._buffer:  # type: ignore[attr-defined]
                    await asyncio.sleep(0)
                way = Way(PathKind.RELAYED, PeerId("relay"))
                served.append(asyncio.create_task(front.front.serve_circuit(stream, way)))

            relay = await asyncio.start_server(accept, "127.0.0.1", 0)
            port = relay.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=anybody(), server_hostname="x")
            writer.write(GREETING)
            await reader.readexactly(9)
            writer.write(ACKNOWLEDGED + request(1))
            assert await reader.readexactly(len(request(1))) == request(1)
            (seen_as,) = front.table._inside
            assert front.table.origin(seen_as) == "relay:relay"
            assert front.table.way(seen_as).path is PathKind.RELAYED
            writer.write(frame(CONTINUATION, b"x", stream=1))
            assert await is_over(reader)
            writer.close()
            await served[0]
            assert len(front.table) == 0
            relay.close()

    run(main())
