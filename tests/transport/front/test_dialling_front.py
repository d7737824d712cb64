"""The front through which gRPC's client reaches a peer: which keys it accepts, which frames pass, and how it closes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from peer.clock.run_clock import RunClock
from peer.errors import BadPayload
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.protocol.messages import Offer, PeerId, RoundKey
from peer.protocol.wire.http2 import CONTINUATION, END_HEADERS, END_STREAM, HEADERS, PREFACE
from peer.transport.client.channels import CHANNEL_OPTIONS, channels_to, is_ready
from peer.transport.client.dial_check import dial_check
from peer.transport.front import dialling
from peer.transport.front.dialling import DiallingFront
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.server.listener import SERVER_OPTIONS
from peer.transport.tls import BACKDATED, VALID, _name, leaf_for, server_context, server_name
from tests.security.strangers.test_hostile_servers import RUN, record_of
from tests.support.behind_front import ACKNOWLEDGED, Serve, frame, until
from tests.support.hostile_client import channel_credentials
from tests.support.hostile_servers import ANSWER, TRAILERS, HostileServer
from tests.support.http2_abuse import SETTINGS, Flood, Variant, message

Run = Callable[[Coroutine[Any, Any, None]], None]
BIG = 4 * 2**20
NOW = datetime.datetime.now(datetime.UTC)
VICTIM = Identity.generate()


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run on uvloop, as daemons do and most tests do not."""
    return lambda test: request.param(asyncio.wait_for(test, 30))


# -- whom it accepts ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The certificates that a server presents to callers of the victim. `signer` signs the leaf."""

    signer: Identity = field(default_factory=lambda: VICTIM)
    issuer: Identity = field(default_factory=lambda: VICTIM)
    name: str = server_name(VICTIM.public_key)
    made: datetime.datetime = NOW
    alpn: tuple[str, ...] = ("h2",)

    def context(self) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_name("tls"))
            .issuer_name(_name(self.issuer.public_key.hex()))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.made - BACKDATED)
            .not_valid_after(self.made + VALID)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(self.name)]), critical=False)
            .sign(self.signer.key, None)
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        context = server_context(private, certificate.public_bytes(serialization.Encoding.PEM))
        context.set_alpn_protocols(list(self.alpn))
        return context


IMPOSTOR = Identity.generate()
DAY = datetime.timedelta(days=1)
SHOWN: dict[str, tuple[Shown, bool]] = {
    "the peer's own": (Shown(), True),
    "of a clock six days ahead": (Shown(made=NOW + 6 * DAY), True),
    "of another key": (Shown(signer=IMPOSTOR, issuer=IMPOSTOR, name=server_name(IMPOSTOR.public_key)), False),
    "of another key, with the peer's name": (Shown(signer=IMPOSTOR, issuer=IMPOSTOR), False),
    "signed by another key, with the peer's names": (Shown(signer=IMPOSTOR), False),
    "of the peer, for another name": (Shown(name=server_name(IMPOSTOR.public_key)), False),
    "a month old": (Shown(made=NOW - VALID - DAY), False),
    "of a clock eight days ahead": (Shown(made=NOW + 8 * DAY), False),
    "for HTTP/1.1": (Shown(alpn=("http/1.1",)), False),
    "for no protocol": (Shown(alpn=()), False),
}


@contextlib.asynccontextmanager
async def serving(context: ssl.SSLContext, serve: Serve) -> AsyncIterator[str]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def says_settings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        writer.write(frame(SETTINGS) + ACKNOWLEDGED)
        await reader.read()
    writer.transport.abort()


@contextlib.asynccontextmanager
async def channel_to(identity: Identity, address: str) -> AsyncIterator[grpc.aio.Channel]:
    """Open a channel of ours through a front."""
    front = DiallingFront(PeerId(identity.peer_id))
    channel = (await channels_to(front, address, address))(False)
    try:
        yield channel
    finally:
        await channel.close()
        await front.close()
        await until(lambda: not front._sessions)


@pytest.mark.parametrize(("shown", "accepted"), SHOWN.values(), ids=SHOWN.keys())
def test_the_key_of_a_peer_is_checked_as_strictly_as_grpcs_own_client_does(shown: Shown, accepted: bool) -> None:
    async def main() -> None:
        async with serving(shown.context(), says_settings) as address:
            for last in (False, False, True):  # on a busy machine a handshake may be given up
                async with channel_to(VICTIM, address) as channel:
                    if (ready := await is_ready(channel, 10.0)) or last or not accepted:
                        break
            assert ready is accepted
            credentials, pinned = channel_credentials(VICTIM.peer_id)
            async with grpc.aio.secure_channel(address, credentials, options=[*CHANNEL_OPTIONS, pinned]) as of_old:
                assert await is_ready(of_old, 10.0) is accepted
            assert (await dial_check(PeerId(VICTIM.peer_id), address, 10.0) == "") is accepted

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_server_without_tls_1_3_is_refused() -> None:
    async def main() -> None:
        context = Shown().context()
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        async with serving(context, says_settings) as address, channel_to(VICTIM, address) as channel:
            assert not await is_ready(channel, 10.0)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_peer_id_without_a_key_is_no_peer() -> None:
    with pytest.raises(ValueError, match="no"):
        DiallingFront(PeerId("nobody"))


# -- what passes -------------------------------------------------------------------------------------------------------


async def echo_messages(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    while (said := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
        await context.write(said)


def test_a_server_of_an_older_program_whose_tls_is_grpcs_own_is_reached(run: Run) -> None:
    async def main() -> None:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(echo_messages)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", {"M": handler}),))
        credentials = grpc.ssl_server_credentials([leaf_for(VICTIM, NOW)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        async with channel_to(VICTIM, f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream("/S/M")()
            for number in range(BIG // 2**18):
                said = bytes([number]) * 2**18
                await call.write(said)
                assert await call.read() == said
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF  # type: ignore[attr-defined]
        await server.stop(0)

    run(main())


# -- what ends ---------------------------------------------------------------------------------------------------------


def test_a_port_where_nobody_listens_ends_the_wait_at_once(run: Run) -> None:
    async def main() -> None:
        async with serving(Shown().context(), says_settings) as address:
            pass
        async with channel_to(VICTIM, address) as channel:
            assert not await is_ready(channel, 60.0)
        assert await dial_check(PeerId(VICTIM.peer_id), address, 60.0) == "connection refused"

    run(main())


def test_a_server_that_says_nothing_is_given_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "CONNECT_S", 0.2)

    async def main() -> None:
        ended = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            ended.set()
            writer.transport.abort()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with channel_to(VICTIM, f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as channel:
            assert not await is_ready(channel, 60.0)
            await ended.wait()
        server.close()

    run(main())


@pytest.mark.parametrize("said", [frame(CONTINUATION, b"\x88", flags=END_HEADERS, stream=1), b"no HTTP/2"], ids=repr)
def test_a_server_that_sends_what_no_grpc_server_does_is_hung_up_on(run: Run, said: bytes) -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(len(PREFACE))
            writer.write(frame(SETTINGS) + ACKNOWLEDGED + said)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while await reader.read(2**16):
                    continue
            ended.set()
            writer.transport.abort()

        async with serving(Shown().context(), hostile) as address, channel_to(VICTIM, address) as channel:
            channel.get_state(try_to_connect=True)
            await ended.wait()

    run(main())


def test_a_server_that_reads_nothing_makes_grpc_wait(run: Run) -> None:
    async def main() -> None:
        over, ended = asyncio.Event(), asyncio.Event()

        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(len(PREFACE))
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frame(SETTINGS) + ACKNOWLEDGED)
            await over.wait()
            writer.transport.abort()
            ended.set()

        front = DiallingFront(PeerId(VICTIM.peer_id))
        async with serving(Shown().context(), deaf) as address:
            _, _, path = (await front.lead_to(address)).partition(":")
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(PREFACE + frame(SETTINGS))
            assert await reader.readexactly(18) == frame(SETTINGS) + ACKNOWLEDGED
            (session,) = front._sessions
            writer.write(bytes(64 * 2**20))
            await until(lambda: session.inner.paused)
            assert session.outer.held <= front.limits.buffer + 2**19
            writer.transport.abort()
            await front.close()
            over.set()
            await ended.wait()
            await until(lambda: not front._sessions)

    run(main())


class Empty:
    """A call without a valid answer: none, or one that cannot be decoded."""

    @staticmethod
    def nothing(_: object) -> Flood:
        yield frame(HEADERS, ANSWER + TRAILERS, flags=END_HEADERS | END_STREAM, stream=101)

    @staticmethod
    def garbage(_: object) -> Flood:
        yield frame(HEADERS, ANSWER, flags=END_HEADERS, stream=101) + frame(0, message(b"\xff\xff"), stream=101)
        yield frame(HEADERS, TRAILERS, flags=END_HEADERS | END_STREAM, stream=101)


@pytest.mark.parametrize("flood", [Empty.nothing, Empty.garbage])
def test_a_call_that_ends_well_and_answers_nothing_is_no_answer(
    flood: Callable[[object], Flood], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostileServer, "variant", Variant("empty", flood), raising=False)
    monkeypatch.setattr(HostileServer, "proof", True)

    async def main() -> None:
        ours = GrpcTransport(Identity.generate(), RUN, RequestHandler(), RunClock().now)
        server = HostileServer(1)
        context = server_context(*leaf_for(server.identity, NOW))
        async with serving(context, server.serve) as address:
            record = record_of(server.identity.peer_id, int(address.rpartition(":")[2]))
            with pytest.raises(BadPayload, match="answer"):
                await ours.offer(record, Offer(RoundKey(0, 0)), 20.0)
            await ours.close()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert not caplog.records, "gRPC logs nothing of it"


# -- how it closes -----------------------------------------------------------------------------------------------------


def test_nothing_is_left_of_a_front_that_is_closed_while_it_dials(run: Run) -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        ended = asyncio.Event()

        async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.transport.abort()
            ended.set()

        never = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
        front = DiallingFront(PeerId(VICTIM.peer_id))
        address = f"127.0.0.1:{never.sockets[0].getsockname()[1]}"
        channel = (await channels_to(front, address, address))(False)
        channel.get_state(try_to_connect=True)
        await until(lambda: any(session.outer.transport for session in front._sessions))
        await channel.close()
        await front.close()
        await until(lambda: not front._sessions)
        await ended.wait()
        never.close()
        await until(lambda: not {t for t in asyncio.all_tasks() - before if t.get_name() == "dialling"})

    run(main())
