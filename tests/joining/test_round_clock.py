"""The own clock must be corrected only once by the answers of other peers, however many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.joining.clock import round_clock
from peer.joining.context import JoinContext
from peer.ports.directory import Directory
from peer.ports.handler import Handler
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.run.home import RunFolder
from peer.run.manifest import default_text, parse_manifest
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport

RUN, AHEAD_S = RunId(b"R" * 32), 20.0


class Greets:
    """A handler that receives Hello calls only."""

    group = None

    def on_hello(self, record: PeerRecord) -> None: ...


def transport(now: Any, correction: Callable[[], float] = lambda: 0.0) -> GrpcTransport:
    made = GrpcTransport(Identity.generate(), RUN, cast(Handler, Greets()), now, correction=correction)
    made.begin_run(RunTerms(b"L" * 32, 2**20))
    return made


@pytest.mark.parametrize("others", [1, 3, 6])
def test_as_many_as_there_are_agree_on_one_correction(others: int, tmp_path: Any) -> None:
    async def ask(clock: RunClock, ours: GrpcTransport, records: list[PeerRecord]) -> None:
        async def peers() -> dict[PeerId, PeerRecord]:
            return {record.peer_id: record for record in records}

        directory = SimpleNamespace(peers=peers)
        context = JoinContext(
            run_id=RUN,
            me=PeerId("me"),
            directory=cast(Directory, directory),
            transport=ours,
            clock=clock,
            say=lambda line: None,
            folder=RunFolder(tmp_path),
        )
        await round_clock(context, parse_manifest(default_text().encode()), 5.0)

    assert asyncio.run(corrected(others, ask)) == pytest.approx(AHEAD_S, abs=0.5)


def test_a_correction_during_a_hello_is_not_counted_again() -> None:
    """Fault: after a suspend each answer corrects the clock while other Hellos are under way. If their offsets were
    measured from the old clock, the correction would count twice."""

    async def ask(clock: RunClock, ours: GrpcTransport, records: list[PeerRecord]) -> None:
        async def greet(record: PeerRecord) -> None:
            clock.observe((await ours.hello(record, 10.0)).clock_offset_s)

        await asyncio.gather(*map(greet, records))

    assert asyncio.run(corrected(9, ask)) == pytest.approx(AHEAD_S, abs=0.5)


async def corrected(others: int, ask: Callable[[RunClock, GrpcTransport, list[PeerRecord]], Awaitable[None]]) -> float:
    """Return the correction after real Hellos over gRPC to peers whose clocks are all ahead of ours by the same
    offset."""
    clock, theirs = RunClock(), RunClock()
    ours = transport(clock.now, lambda: clock.correction)
    all_others = [transport(lambda: theirs.now() + AHEAD_S) for _ in range(others)]
    try:
        records = []
        for other in all_others:
            port = await other.start("127.0.0.1", 0)
            at, me = clock.now(), PeerId(other._config.identity.peer_id)
            where = (f"127.0.0.1:{port}",)
            records.append(PeerRecord(me, RUN, where, True, 1, 1, 0, 5.0, Status.TRAINING, at, at + 60))
        await ask(clock, ours, records)
        return clock.correction
    finally:
        for end in (ours, *all_others):
            await end.close()
