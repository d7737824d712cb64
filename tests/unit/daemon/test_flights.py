"""What goes wrong in the background is seen at once, by whoever waits for something else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from peer.daemon.flights import Flights, Landing
from peer.daemon.topology import Session, Topology
from peer.errors import PartnerLost, TrainerDied
from peer.identity import Identity
from peer.net.transport import GrpcTransport
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, RunId, Status

RUN = RunId(b"r" * 32)
NOBODY = PeerRecord(PeerId("nobody"), RUN, (), False, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 60.0)


class Opens:
    """A topology in which a round does this as soon as it is open."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work

    @asynccontextmanager
    async def opened(self, key: RoundKey, opens_at: float, closes_at: float) -> AsyncIterator[Session]:
        await self._work
        yield cast(Session, None)


async def fails(error: BaseException) -> None:
    raise error


def beside(error: BaseException) -> object:
    async def main() -> object:
        flights = Flights(cast(Topology, Opens(fails(error))), cast(Landing, None))
        flights.begin(RoundKey(0, 0), 0.0, 1.0)
        async with asyncio.timeout(5):
            return await flights.beside(asyncio.sleep(0.05, "done"))

    return asyncio.run(main())


def test_an_error_in_a_flight_ends_what_is_waited_for() -> None:
    with pytest.raises(ZeroDivisionError):
        beside(ZeroDivisionError())


def test_a_flight_that_ends_without_a_word_is_an_error_too() -> None:
    with pytest.raises(AssertionError, match="nobody gave this flight up"):
        beside(asyncio.CancelledError())


def test_a_trainers_death_is_left_to_the_call_itself() -> None:
    assert beside(TrainerDied("killed")) == "done"


def test_a_call_that_grpc_breaks_off_is_a_lost_partner_and_a_cancelled_one_is_cancelled() -> None:
    async def main() -> None:
        transport = GrpcTransport(Identity.generate(), RUN, cast(Any, None), lambda: 0.0)
        with pytest.raises(PartnerLost, match="broken off"):
            await transport._bounded(fails(asyncio.CancelledError()), NOBODY, 5.0)
        waiting = asyncio.create_task(transport._bounded(asyncio.Event().wait(), NOBODY, 5.0))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await transport.close()

    asyncio.run(main())
