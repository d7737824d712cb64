"""Inspection of HTTP/2: everything that gRPC's own client and server send passes, and nothing else does."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Callable

import grpc
import pytest

from peer.protocol.token_bucket import Rate
from peer.protocol.wire.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    LEAST_DATA,
    MAX_BLOCK,
    MAX_DATA,
    MAX_FIELDS,
    MAX_GOAWAY,
    MOST_PAID,
    OFTEN,
    PADDED,
    PING,
    PREFACE,
    PRIORITIZED,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    AnswerWalker,
    FrameRates,
    FrameRefused,
    FrameWalker,
    fields_of,
)
from peer.transport.client.channels import CHANNEL_OPTIONS
from peer.transport.front.dialling import RATES
from peer.transport.server.listener import SERVER_OPTIONS
from tests.support.behind_front import ACKNOWLEDGED, GREETING, REQUEST, frame, request

ANY = Rate(math.inf, math.inf)
UNBOUNDED = FrameRates(control=ANY, small=ANY, data=ANY)
OF_WINDOW = b"\0\0\0\5"


def walker(rates: FrameRates = UNBOUNDED, *, open_streams: int = 1) -> FrameWalker:
    """Return a walker after the greeting, with this many streams opened."""
    made = FrameWalker(rates, 0.0)
    made.walk(memoryview(GREETING), 0.0)
    made.answered()
    for number in range(open_streams):
        made.walk(memoryview((b"" if number else ACKNOWLEDGED) + request(2 * number + 1)), 0.0)
    return made


def passes(one: FrameWalker, said: bytes, now: float = 0.0) -> bool:
    return b"".join(one.walk(memoryview(said), now)) == said


REFUSED: dict[str, bytes] = {
    "CONTINUATION": frame(CONTINUATION, REQUEST, flags=END_HEADERS, stream=1),
    "headers to be continued": frame(HEADERS, REQUEST, stream=3),
    "a header block that is too long": frame(HEADERS, REQUEST * 3000, flags=END_HEADERS, stream=3)[:9],
    "too many fields": frame(HEADERS, b"\x82" * (MAX_FIELDS + 1), flags=END_HEADERS, stream=3),
    "too many table updates": frame(HEADERS, b"\x20" * (MAX_FIELDS + 1), flags=END_HEADERS, stream=3),
    "a field that is cut off": frame(HEADERS, b"\x00\x7f", flags=END_HEADERS, stream=3),
    "padded headers": frame(HEADERS, b"\0" + REQUEST, flags=END_HEADERS | PADDED, stream=3),
    "headers with a priority": frame(HEADERS, bytes(5) + REQUEST, flags=END_HEADERS | PRIORITIZED, stream=3),
    "headers on an even stream": frame(HEADERS, REQUEST, flags=END_HEADERS, stream=2),
    "headers on an old stream": frame(HEADERS, REQUEST, flags=END_HEADERS, stream=1),
    "headers on no stream": frame(HEADERS, REQUEST, flags=END_HEADERS),
    "data on no stream": frame(DATA, b"x"),
    "data on a stream to come": frame(DATA, b"x", stream=3),
    "padded data": frame(DATA, b"\0x", flags=PADDED, stream=1),
    "data that is too long": frame(DATA, bytes(MAX_DATA + 1), stream=1)[:9],
    "PUSH_PROMISE": frame(PUSH_PROMISE, bytes(4) + REQUEST, flags=END_HEADERS, stream=1),
    "RST_STREAM of a stream to come": frame(RST_STREAM, bytes(4), stream=3),
    "RST_STREAM of no stream": frame(RST_STREAM, bytes(4)),
    "RST_STREAM of 5 bytes": frame(RST_STREAM, bytes(5), stream=1),
    "SETTINGS on a stream": frame(SETTINGS, stream=1),
    "SETTINGS of 5 bytes": frame(SETTINGS, bytes(5)),
    "many SETTINGS at once": frame(SETTINGS, bytes(6 * 33)),
    "an acknowledgement with a body": frame(SETTINGS, bytes(6), flags=ACK),
    "PING of 7 bytes": frame(PING, bytes(7)),
    "PING on a stream": frame(PING, bytes(8), stream=1),
    "GOAWAY with a long text": frame(GOAWAY, bytes(2000)),
    "WINDOW_UPDATE of nothing": frame(WINDOW_UPDATE, bytes(4)),
    "WINDOW_UPDATE of a stream to come": frame(WINDOW_UPDATE, OF_WINDOW, stream=5),
    "PRIORITY of 6 bytes": frame(PRIORITY, bytes(6), stream=1),
    "a long frame of an unknown kind": frame(0xBE, bytes(5000), stream=1)[:9],
}


@pytest.mark.parametrize("said", REFUSED.values(), ids=REFUSED.keys())
def test_what_no_grpc_client_sends_is_refused(said: bytes) -> None:
    with pytest.raises(FrameRefused):
        walker().walk(memoryview(said), 0.0)


@pytest.mark.parametrize("said", REFUSED.values(), ids=REFUSED.keys())
def test_it_is_refused_in_single_bytes_too_and_nothing_of_it_passes(said: bytes) -> None:
    one, passed = walker(), b""

    def walk() -> None:
        nonlocal passed
        for byte in said:
            passed += b"".join(one.walk(memoryview(bytes([byte])), 0.0))

    with pytest.raises(FrameRefused):
        walk()
    assert passed == b""


def test_what_a_client_may_send_passes() -> None:
    one = walker(open_streams=2)
    assert passes(one, frame(DATA, bytes(2**14), stream=3) + frame(DATA, flags=END_STREAM, stream=1))
    assert passes(one, frame(RST_STREAM, bytes(4), stream=1) + frame(PING, bytes(8)) + frame(PING, bytes(8), flags=ACK))
    assert passes(one, frame(WINDOW_UPDATE, OF_WINDOW) + frame(WINDOW_UPDATE, OF_WINDOW, stream=3))
    assert passes(one, frame(SETTINGS, bytes(12)) + frame(GOAWAY, bytes(8)) + frame(0xBE, b"grease"))
    assert passes(one, frame(HEADERS, b"\x82" * MAX_FIELDS, flags=END_HEADERS | END_STREAM, stream=9))


def test_nothing_opens_a_stream_before_our_settings_are_acknowledged() -> None:
    one = FrameWalker(UNBOUNDED, 0.0)
    assert passes(one, GREETING + frame(WINDOW_UPDATE, OF_WINDOW))
    assert one.greeted
    with pytest.raises(FrameRefused, match="acknowledged"):
        one.walk(memoryview(request(1)), 0.0)


def test_settings_are_not_acknowledged_before_they_were_sent() -> None:
    one = FrameWalker(UNBOUNDED, 0.0)
    with pytest.raises(FrameRefused, match="not sent"):
        one.walk(memoryview(GREETING + ACKNOWLEDGED), 0.0)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1", PREFACE[:-1] + b"x", PREFACE + frame(PING, bytes(8))], ids=repr)
def test_a_client_begins_with_the_preface_and_its_settings(said: bytes) -> None:
    with pytest.raises(FrameRefused):
        FrameWalker(UNBOUNDED, 0.0).walk(memoryview(said), 0.0)


def test_data_passes_as_it_comes_and_without_a_copy() -> None:
    one, said = walker(), frame(DATA, bytes(2**16), stream=1)
    data = memoryview(said)
    for start in range(9, len(said), 1000):
        part = data[0 if start == 9 else start - 1000 + 9 : start]
        passed = one.walk(part, 0.0)
        assert b"".join(passed) == bytes(part)
        assert all(isinstance(piece, memoryview) and piece.obj is said for piece in passed)


def test_a_small_frame_passes_when_it_is_complete() -> None:
    one, said = walker(), request(3)
    assert one.walk(memoryview(said[:-1]), 0.0) == []
    assert one.held == len(said) - 1
    assert one.walk(memoryview(said[-1:]), 0.0) == [said]
    assert one.held == 0


# -- counts ------------------------------------------------------------------------------------------------------------

TIGHT = FrameRates(control=Rate(2.0, 10.0), small=Rate(4.0, 20.0), data=Rate(1000.0, 4096.0))
MANY: dict[str, tuple[Callable[[int], bytes], float]] = {
    "HEADERS": (lambda n: request(2 * n + 101), 2.0),
    "RST_STREAM": (lambda n: frame(RST_STREAM, bytes(4), stream=1), 2.0),
    "PING": (lambda n: frame(PING, bytes(8)), 2.0),
    "PING acknowledged": (lambda n: frame(PING, bytes(8), flags=ACK), 2.0),
    "SETTINGS": (lambda n: frame(SETTINGS), 2.0),
    "SETTINGS acknowledged": (lambda n: ACKNOWLEDGED, 2.0),
    "WINDOW_UPDATE": (lambda n: frame(WINDOW_UPDATE, OF_WINDOW), 4.0),
    "empty DATA": (lambda n: frame(DATA, stream=1), 4.0),
    "DATA of a byte": (lambda n: frame(DATA, b"x", stream=1), 4.0),
    "PRIORITY": (lambda n: frame(PRIORITY, bytes(5), stream=1), 0.25),
    "unknown": (lambda n: frame(0x42, b"x"), 0.25),
}


@pytest.mark.parametrize(("make", "per_s"), MANY.values(), ids=MANY.keys())
def test_a_client_that_obeys_its_waits_passes_no_more_frames_than_the_rate(
    make: Callable[[int], bytes], per_s: float
) -> None:
    one, now, sent = walker(TIGHT), 0.0, 0
    one.admitted = True
    while now < 1000.0:
        assert passes(one, make(sent), now)
        sent += 1
        now += one.owes_s(now)
    assert sent <= 1000 * per_s + 30


@pytest.mark.parametrize(("make", "_"), MANY.values(), ids=MANY.keys())
def test_a_client_that_overdraws_by_a_whole_burst_is_refused(make: Callable[[int], bytes], _: float) -> None:
    one = walker(TIGHT)
    one.admitted = True
    one.walk(memoryview(b"".join(make(number) for number in range(50))), 0.0)
    with pytest.raises(FrameRefused, match="too many"):
        one.owes_s(0.0)


def test_window_updates_and_small_frames_are_paid_for_by_bytes() -> None:
    one = walker(TIGHT)
    one.admitted = True
    for number in range(1000):
        one.sent(2 * OFTEN)
        one.walk(memoryview(frame(WINDOW_UPDATE, OF_WINDOW) * 2), 0.0)
        one.walk(memoryview(frame(DATA, bytes(2 * OFTEN), stream=1) + frame(DATA, b"x", stream=1)), 0.0)
        assert one.owes_s(0.0) == 0.0, number
    one.sent(10**9)
    one.take_spent()
    one.walk(memoryview(frame(WINDOW_UPDATE, OF_WINDOW) * 5000), 0.0)
    assert one.take_spent() == 5000 - MOST_PAID, "nobody saves up more"


def test_a_client_without_a_key_sends_so_much_data_and_waits_with_more() -> None:
    one = walker(FrameRates(control=ANY, small=ANY, data=Rate(0.0, 2.0**16)))
    one.walk(memoryview(frame(DATA, bytes(2**14), stream=1) * 4), 0.0)
    assert one.owes_s(0.0) == 0.0
    assert one.unadmitted == 2**16
    one.walk(memoryview(frame(DATA, b"x", stream=1)), 1e6)
    assert one.owes_s(1e6) == math.inf


def test_a_small_frame_of_data_counts_as_more() -> None:
    one = walker(FrameRates(control=ANY, small=ANY, data=Rate(0.0, 2.0**16)))
    one.walk(memoryview(frame(DATA, b"x", stream=1) * (2**16 // LEAST_DATA + 1)), 0.0)
    assert one.owes_s(0.0) == math.inf


def test_an_admitted_call_answers_for_data_and_a_key_for_more_of_it() -> None:
    one = walker(FrameRates(control=ANY, small=ANY, data=Rate(0.0, 2.0**16)))
    one.admitted = True
    one.walk(memoryview(frame(DATA, bytes(2**14), stream=1) * 100), 0.0)
    assert one.owes_s(0.0) == 0.0
    one.admitted = False
    one.change(FrameRates(control=ANY, small=ANY, data=Rate(2.0**10, 2.0**16)))
    one.walk(memoryview(frame(DATA, bytes(2**14), stream=1) * 5), 0.0)
    assert one.owes_s(0.0) == 2**14 / 2**10


def test_a_connection_says_goodbye_a_few_times() -> None:
    one = walker()
    assert passes(one, frame(GOAWAY, bytes(8)) * MAX_GOAWAY)
    with pytest.raises(FrameRefused, match="GOAWAY"):
        one.walk(memoryview(frame(GOAWAY, bytes(8))), 0.0)


# -- answers -----------------------------------------------------------------------------------------------------------

ANSWER = bytes.fromhex("88")
"""Header block with status 200."""


def answer(stream: int, block: bytes = ANSWER, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, block, flags=flags, stream=stream)


def answers(rates: FrameRates = UNBOUNDED) -> AnswerWalker:
    """Return a walker of a server's frames after the greeting."""
    made = AnswerWalker(rates, 0.0)
    made.answered()
    assert passes(made, frame(SETTINGS) + ACKNOWLEDGED)
    return made


REFUSED_ANSWERS: dict[str, bytes] = {
    "CONTINUATION": frame(CONTINUATION, ANSWER, flags=END_HEADERS, stream=1),
    "headers to be continued": answer(1, flags=0),
    "a header block that is too long": answer(1, bytes(MAX_BLOCK + 1))[:9],
    "too many fields": answer(1, b"\xbe" * (MAX_FIELDS + 1)),
    "padded headers": answer(1, b"\0" + ANSWER, flags=END_HEADERS | PADDED),
    "headers on an even stream": answer(2),
    "headers on no stream": answer(0),
    "data on no stream": frame(DATA, b"x"),
    "data on an even stream": frame(DATA, b"x", stream=2),
    "data that is too long": frame(DATA, bytes(MAX_DATA + 1), stream=1)[:9],
    "PUSH_PROMISE": frame(PUSH_PROMISE, bytes(4) + ANSWER, flags=END_HEADERS, stream=1),
    "SETTINGS of 5 bytes": frame(SETTINGS, bytes(5)),
    "GOAWAY with a long text": frame(GOAWAY, bytes(2000)),
    "WINDOW_UPDATE of nothing": frame(WINDOW_UPDATE, bytes(4)),
    "RST_STREAM of no stream": frame(RST_STREAM, bytes(4)),
    "a long frame of an unknown kind": frame(0xBE, bytes(5000), stream=1)[:9],
}


@pytest.mark.parametrize("said", REFUSED_ANSWERS.values(), ids=REFUSED_ANSWERS.keys())
def test_what_no_grpc_server_sends_is_refused(said: bytes) -> None:
    with pytest.raises(FrameRefused):
        answers().walk(memoryview(said), 0.0)


def test_what_a_server_may_send_passes_to_whatever_calls_there_are() -> None:
    one = answers()
    assert passes(one, answer(5) + frame(DATA, bytes(2**14), stream=5) + answer(5, flags=END_HEADERS | END_STREAM))
    assert passes(one, answer(1, flags=END_HEADERS | END_STREAM) + frame(RST_STREAM, bytes(4), stream=7))
    assert passes(one, frame(PING, bytes(8)) + frame(PING, bytes(8), flags=ACK) + frame(WINDOW_UPDATE, OF_WINDOW))
    assert passes(one, frame(SETTINGS, bytes(12)) + frame(GOAWAY, bytes(8)) + frame(0xBE, b"grease"))
    assert one.owes_s(0.0) == 0.0


@pytest.mark.parametrize(
    "said", [PREFACE, frame(PING, bytes(8)), ACKNOWLEDGED, answer(1), frame(DATA, b"x", stream=1)], ids=repr
)
def test_a_server_begins_with_its_settings(said: bytes) -> None:
    one = AnswerWalker(UNBOUNDED, 0.0)
    one.answered()
    with pytest.raises(FrameRefused):
        one.walk(memoryview(said), 0.0)


@pytest.mark.parametrize("said", [answer(1), frame(DATA, b"x", stream=1)], ids=repr)
def test_a_server_answers_no_call_before_it_acknowledged_our_settings(said: bytes) -> None:
    """gRPC's own limits of header blocks apply only after that."""
    one = AnswerWalker(UNBOUNDED, 0.0)
    one.answered()
    assert passes(one, frame(SETTINGS))
    with pytest.raises(FrameRefused, match="acknowledged"):
        one.walk(memoryview(said), 0.0)


@pytest.mark.parametrize(
    "said", [answer(1), frame(RST_STREAM, bytes(4), stream=1), frame(PING, bytes(8)), frame(SETTINGS)], ids=repr
)
def test_a_server_that_sends_many_frames_waits_and_is_refused_beyond_a_burst(said: bytes) -> None:
    one = answers(FrameRates(control=Rate(2.0, 10.0), small=ANY, data=Rate(0.0, 0.0)))
    one.walk(memoryview(said * 14), 0.0)
    assert one.owes_s(0.0) > 0.0
    one.walk(memoryview(said * 14), 0.0)
    with pytest.raises(FrameRefused, match="too many"):
        one.owes_s(0.0)


def test_data_of_an_answer_is_bounded_by_grpcs_windows_alone() -> None:
    one = answers(FrameRates(control=ANY, small=ANY, data=Rate(0.0, 0.0)))
    one.walk(memoryview(frame(DATA, bytes(2**14), stream=1) * 100), 0.0)
    assert one.owes_s(0.0) == 0.0


# -- header blocks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "fields"),
    [
        ("", 0),
        ("838684", 3),
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", 1),  # RFC 7541, C.2.1
        ("040c2f73616d706c652f70617468", 1),  # C.2.2
        ("100870617373776f726406736563726574", 1),  # C.2.3
        ("828684418cf1e3c2e5f23a6ba0ab90f4ff", 4),  # C.4.1, Huffman
        ("3fe11f82", 2),  # table size 4096, then an indexed field
    ],
)
def test_fields_are_counted_without_a_table(block: str, fields: int) -> None:
    assert fields_of(bytes.fromhex(block)) == fields


@pytest.mark.parametrize("block", ["40", "4001", "0f", "0fffffffffffffff7f", "7f", "ff", "0a7f"])
def test_a_block_that_ends_in_the_middle_is_refused(block: str) -> None:
    with pytest.raises(FrameRefused):
        fields_of(bytes.fromhex(block))


# -- the order of a real client ----------------------------------------------------------------------------------------


class Recorded:
    """A TCP relay between gRPC's own client and server, which inspects what both send."""

    def __init__(self, inside: int) -> None:
        self.refused = ""
        """Why an answer did not pass; empty: all passed."""
        self.kinds: list[tuple[int, int]] = []
        self.walkers: list[FrameWalker] = []
        self._inside = inside
        self._tasks = set[asyncio.Task[None]]()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self._inside)
        walking = FrameWalker(UNBOUNDED, 0.0)
        self.walkers.append(walking)
        task = asyncio.create_task(self._answers(there[0], writer, walking))
        self._tasks.add(task)
        whole = bytearray()
        while said := await reader.read(2**16):
            for part in walking.walk(memoryview(said), 0.0):
                there[1].write(part)
                whole += part
        there[1].close()
        await task
        pos = len(PREFACE)
        while pos + 9 <= len(whole):
            upper, lower, kind, flags = struct.unpack_from(">BHBB", whole, pos)
            self.kinds.append((kind, flags))
            pos += 9 + (upper << 16 | lower)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, walking: FrameWalker) -> None:
        answering = AnswerWalker(RATES, 0.0)
        answering.answered()
        try:
            while said := await reader.read(2**16):
                walking.answered()
                for part in answering.walk(memoryview(said), 0.0):
                    writer.write(part)
                assert answering.owes_s(0.0) == 0.0, "it has sent too much"
        except FrameRefused as refused:
            self.refused = str(refused)
        writer.close()


async def swallow(request: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    while (said := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
        await context.write(said)


@pytest.mark.parametrize("options", [CHANNEL_OPTIONS, []], ids=["ours", "gRPC's defaults"])
def test_the_installed_grpc_keeps_the_order_and_passes_both_ways(options: list[tuple[str, int]]) -> None:
    """The walker relies on this order, in every version of gRPC with which the project is tested."""

    async def main() -> None:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(swallow)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", {"M": handler}),))
        recorded = Recorded(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        relay = await asyncio.start_server(recorded.carry, "127.0.0.1", 0)
        port = relay.sockets[0].getsockname()[1]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            for size in (10, 300_000):
                call = channel.stream_stream("/S/M")(metadata=(("peer-token-bin", bytes(32)),))
                for _ in range(5):
                    await call.write(bytes(size))
                    assert len(await call.read()) == size
                await call.done_writing()
                assert await call.read() is grpc.aio.EOF
            cancelled = channel.stream_stream("/S/M")()
            await cancelled.write(b"x")
            await cancelled.read()
            cancelled.cancel()
            await channel.stream_stream("/S/Unknown")().code()
        await server.stop(0)
        relay.close()
        async with asyncio.timeout(5):
            while not recorded.kinds:
                await asyncio.sleep(0.01)
        order = [kind for kind, flags in recorded.kinds if not (kind == SETTINGS and flags & ACK)]
        first = recorded.kinds.index((SETTINGS, ACK))
        assert recorded.kinds[0] == (SETTINGS, 0)
        assert first < min(number for number, (kind, _) in enumerate(recorded.kinds) if kind == HEADERS)
        assert set(order) <= {SETTINGS, WINDOW_UPDATE, HEADERS, DATA, PING, RST_STREAM, GOAWAY}
        assert all(flags & END_HEADERS for kind, flags in recorded.kinds if kind == HEADERS)
        assert len(recorded.walkers) == 1, "it was never hung up on"
        assert not recorded.refused

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_header_block_of_ours_is_far_from_the_bounds() -> None:
    assert MAX_BLOCK >= 16 * 300
    assert MAX_FIELDS >= 2 * 14
