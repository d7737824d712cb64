"""The closed peer's side of a reservation, in virtual time, with relays that misbehave."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from peer.errors import BadPayload, PartnerLost
from peer.lab.sim.virtual_clock import run_virtual
from peer.observe.control_bytes import ControlMeter
from peer.protocol.messages import RelayAttestation
from peer.transport.calls.reserve import ALIVE_EVERY_S, SILENT_S, hold
from peer.transport.client.connections import Connection
from peer.transport.wire.refusals import TOKEN_KEY
from peer.v1 import exchange_pb2 as pb

SLIP = b"s" * 16
ALIVE = pb.ReserveReply(rate=5e4).SerializeToString()


class Call:
    """A fake reservation call: the relay sends each message after some seconds, then nothing more."""

    def __init__(self, *said: tuple[float, Any]) -> None:
        self._said = list(said)
        self.cancelled = False
        self.metadata: Any = None

    def __call__(self, request: bytes, metadata: Any) -> Call:
        self.metadata = metadata
        return self

    async def read(self) -> Any:
        if not self._said:
            await asyncio.Event().wait()
        seconds, said = self._said.pop(0)
        await asyncio.sleep(seconds)
        if isinstance(said, Exception):
            raise said
        return said

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    def done(self) -> bool:
        return False

    def cancel(self) -> None:
        self.cancelled = True


class Home:
    """Records what a closed peer receives."""

    def __init__(self) -> None:
        self.granted: list[tuple[float, RelayAttestation | None]] = []
        self.called: list[bytes] = []

    async def hold(self, call: Call) -> None:
        control = SimpleNamespace(unary_stream=lambda path, response_deserializer: call)
        connection = cast(Connection, SimpleNamespace(control=control, token=b"token"))
        try:
            told = lambda rate, word: self.granted.append((rate, word))  # noqa: E731
            await hold(connection, told, self.called.append, ControlMeter())
        finally:
            assert call.cancelled, "no part of the call stays behind"
            assert call.metadata == ((TOKEN_KEY, b"token"),)


def test_what_the_relay_says_is_handed_on() -> None:
    async def main() -> None:
        home, word = Home(), pb.RelayWord(block="192.0.2.0/24", until=77, signature=b"s" * 64)
        said = [
            (0.1, pb.ReserveReply(rate=5e4, word=word).SerializeToString()),
            (ALIVE_EVERY_S, ALIVE),
            (1.0, pb.ReserveReply(rate=6e4, slip=SLIP).SerializeToString()),
            (1.0, grpc.aio.EOF),
        ]
        with pytest.raises(PartnerLost, match="ended the reservation"):
            await home.hold(Call(*said))
        assert home.granted == [(5e4, RelayAttestation("192.0.2.0/24", 77, b"s" * 64)), (5e4, None), (6e4, None)]
        assert home.called == [SLIP]

    run_virtual(main())


@pytest.mark.parametrize("alive", [0, 1, 3])
def test_a_relay_that_gives_no_sign_of_life_is_lost(alive: int) -> None:
    async def main() -> None:
        home = Home()
        with pytest.raises(PartnerLost, match="no sign of life"):
            await home.hold(Call(*[(ALIVE_EVERY_S, ALIVE)] * alive))
        assert len(home.granted) == alive
        assert asyncio.get_running_loop().time() == pytest.approx(alive * ALIVE_EVERY_S + SILENT_S)

    run_virtual(main())


@pytest.mark.parametrize(
    "said",
    [
        b"\xff\xff",
        b"",
        pb.ReserveReply(rate=0.0).SerializeToString(),
        pb.ReserveReply(rate=-1.0).SerializeToString(),
        pb.ReserveReply(rate=math.nan).SerializeToString(),
        pb.ReserveReply(rate=math.inf).SerializeToString(),
        pb.ReserveReply(rate=5e4, slip=b"short").SerializeToString(),
        pb.ReserveReply(rate=5e4, slip=b"x" * 17).SerializeToString(),
        pb.ReserveReply(rate=5e4, word=pb.RelayWord(block="x" * 10_000)).SerializeToString(),
    ],
    ids=["garbage", "nothing", "no rate", "negative", "NaN", "infinite", "short slip", "long slip", "huge word"],
)
def test_a_relay_that_speaks_nonsense_is_refused(said: bytes) -> None:
    async def main() -> None:
        home = Home()
        with pytest.raises(BadPayload):
            await home.hold(Call((0.1, said)))
        assert not home.granted
        assert not home.called

    run_virtual(main())


def test_it_is_held_until_it_is_cancelled() -> None:
    async def main() -> None:
        home = Home()
        holding = asyncio.create_task(home.hold(Call(*[(ALIVE_EVERY_S, ALIVE)] * 1000)))
        await asyncio.wait({holding}, timeout=3600.0)
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding
        assert len(home.granted) == 3600 // ALIVE_EVERY_S - 1 or len(home.granted) == 3600 // ALIVE_EVERY_S

    run_virtual(main())
