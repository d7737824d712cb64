"""A run's start comes only from the signed start, which every peer passes on, and from no record."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.joining.clock import round_clock
from peer.joining.context import JoinContext
from peer.joining.ended import ensure_not_ended
from peer.lab.sim.machine import SimulatedPeer
from peer.lab.sim.process import OPERATOR
from peer.lab.sim.process import RUN as SIMULATED
from peer.lab.sim.setting import SwarmSetting
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.membership.statement_sync import StatementSync
from peer.node.handler import RequestHandler
from peer.observe.events import Event, PaperRefused, RoundEnded
from peer.ports.directory import DialReport
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.protocol.schedule import RoundClock
from peer.run.manifest import Manifest
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from peer.run.statements.files import known_start
from peer.run.statements.kinds import StartDocument
from peer.run.statements.log import StatementLog
from peer.run.statements.statement import sign
from peer.signed_record import DOMAIN as RECORD_DOMAIN
from peer.signed_record import open_record, seal
from peer.transport.grpc_transport import GrpcTransport
from peer.v1 import exchange_pb2 as pb
from tests.support.seeds import nightly

RUN, OWNER, LIARS = RunId(b"R" * 32), Identity.generate(), 6
WILD = b"\x59" + bytes(8)[:-2] + b"\xf0\x3f"
"""`run_start` = 1.0, as records said it in wire version 1: field 11, a double."""


def manifest(start: float = 0.0) -> Manifest:
    sync = {"clock": "seconds", "sync_every": 300.0}
    train = {"total_rounds": 2000}
    whole = {"format": 1, "name": "w", "operator": OWNER.peer_id, "sync": sync, "train": train, "start": start}
    return Manifest.model_validate(whole)


def statements(heard: list[Event] | None = None) -> StatementSync:
    emit = (lambda event: None) if heard is None else heard.append
    return StatementSync(StatementLog(RUN, OWNER.peer_id, wants_start=True), emit)


def wild_record(record: PeerRecord, key: Identity) -> PeerRecord:
    """Return a validly signed record that also names a start, as a peer decodes it."""
    body = pb.SignedRecord.FromString(seal(record, key)).body + WILD
    signed = pb.SignedRecord(public_key=key.public_key, body=body, signature=key.sign(RECORD_DOMAIN, body))
    return open_record(signed.SerializeToString(), RUN, record.issued_at)


class Forger(RequestHandler):
    """Serves starts that the operator never signed."""

    def __init__(self, key: Identity) -> None:
        super().__init__()
        foreign = StatementLog(RUN, key.peer_id)
        claimed = StartDocument(run=RUN.hex(), by=OWNER.peer_id, start=1.0)
        raw = claimed.model_dump_json().encode()
        as_if = b'{"paper": %s, "signature": "%s"}'
        self._lines = [
            foreign.sign_start(key, 1.0, 1.0).line,
            as_if % (pb_text(raw), key.sign(b"peer paper v1", raw).hex().encode()),
            b"garbage",
        ]

    def on_papers(self, held: Any) -> list[bytes]:
        return self._lines


def pb_text(raw: bytes) -> bytes:
    """Return a document as a JSON string."""
    return b'"' + raw.replace(b'"', b'\\"') + b'"'


@contextlib.asynccontextmanager
async def swarm(honest: StatementSync | None) -> AsyncIterator[JoinContext]:
    """Run liars and an honest peer with these papers over gRPC, as a newcomer sees them."""
    now, opened, records = RunClock().now, list[GrpcTransport](), dict[PeerId, PeerRecord]()

    async def opens(key: Identity, handler: RequestHandler) -> None:
        transport = GrpcTransport(key, RUN, handler, now)
        opened.append(transport)
        where = (f"127.0.0.1:{await transport.start('127.0.0.1', 0)}",)
        me = PeerId(key.peer_id)
        said = PeerRecord(me, RUN, where, True, 1, 2, 10**6, 1.0, Status.TRAINING, now(), now() + 60)
        records[me] = wild_record(said, key) if isinstance(handler, Forger) else said

    async def peers() -> dict[PeerId, PeerRecord]:
        return records

    try:
        for _ in range(LIARS):
            await opens(key := Identity.generate(), Forger(key))
        if honest is not None:
            handler = RequestHandler()
            handler.register(statements=honest)
            await opens(Identity.generate(), handler)
        ours = GrpcTransport(newcomer := Identity.generate(), RUN, RequestHandler(), now)
        opened.append(ours)
        directory = SimpleNamespace(peers=peers, contact=lambda: DialReport(clock_offset_s=0.0))
        async with asyncio.timeout(90):
            yield JoinContext(
                run_id=RUN,
                me=PeerId(newcomer.peer_id),
                directory=cast(Any, directory),
                transport=ours,
                clock=RunClock(),
                say=lambda line: None,
            )
    finally:
        for transport in opened:
            await transport.close()


def test_records_and_forged_papers_of_many_move_no_newcomers_clock() -> None:
    async def main() -> None:
        began, heard = RunClock().now() - 100_000.0, list[Event]()
        honest = statements()
        honest.add_own([honest.log.sign_start(OWNER, began, began)])
        async with swarm(honest) as context:
            held = statements(heard)
            await ensure_not_ended(context, manifest(), (), held)  # with the forged start of 1970 the run would be over
            rounds = await round_clock(context, manifest(), known_start(held.log, None))
            assert rounds.start == began
            assert rounds.round_at(context.clock.now()) == 333
        refused = {event.code for event in heard if isinstance(event, PaperRefused)}
        assert refused <= {"paper", "paper_delegation", "paper_signature"}
        assert held.refused.total() >= 3 * len({event.peer for event in heard if isinstance(event, PaperRefused)})

    asyncio.run(main())


def test_a_newcomer_that_finds_no_signed_start_waits() -> None:
    async def main() -> None:
        async with swarm(None) as context:
            held = statements()
            await ensure_not_ended(context, manifest(), (), held)
            rounds = await round_clock(context, manifest(), known_start(held.log, None))
            assert rounds.start == 0.0
            assert held.refused.total() >= 3 * LIARS
            assert held.log.awaits_start

    asyncio.run(main())


# -- a whole swarm in virtual time ------------------------------------------------------------------------------------

AWAY_S, ROUND_S, FIRST_S = 6 * 3600.0, 600.0, 37.0
METHOD = resolve(SyncSection(preset="noloco", codec="fp32"))


def rounds_of(peer: SimulatedPeer) -> list[int]:
    return [event.round for event in peer.events if isinstance(event, RoundEnded)]


@pytest.mark.parametrize("forged", [*nightly([False]), True])
def test_a_run_whose_operator_is_gone_for_hours_takes_newcomers(forged: bool) -> None:
    total = int(AWAY_S / ROUND_S) + 12

    async def main() -> SimulatedSwarm:
        rounds = RoundClock("seconds", ROUND_S, 1, 0.0)
        setting = SwarmSetting(method=METHOD, rounds=rounds, total_rounds=total, seed=4)
        swarm = SimulatedSwarm(6, setting, step_seconds=60.0)
        operators, liar, newcomer = swarm.peers[0], swarm.peers[1], swarm.peers[5]
        if forged:
            stranger = Identity.generate()
            claimed = StartDocument(run=SIMULATED.hex(), by=stranger.peer_id, start=EPOCH - AWAY_S)
            line = sign(claimed, stranger).line
            liar.statements.on_papers = lambda held: [line]  # type: ignore[method-assign]
        async with asyncio.timeout(2 * AWAY_S), asyncio.TaskGroup() as group:
            group.create_task(swarm.run())
            await asyncio.sleep(FIRST_S)
            assert all(not rounds_of(peer) for peer in swarm.peers)
            phases = {peer.life.round_status.phase for peer in swarm.peers}
            assert phases == {"waiting for the run's signed start: nobody has shown it yet"}
            log = operators.statements.log
            operators.statements.add_own([log.sign_start(OPERATOR, EPOCH + FIRST_S + 4.0, EPOCH)])
            await asyncio.sleep(10.0)
            swarm.kill(operators)
            swarm.kill(newcomer)
            await asyncio.sleep(AWAY_S)
            swarm.restart(newcomer, from_checkpoint=False)
        return swarm

    swarm = run_virtual(main())
    for peer in swarm.peers[1:5]:
        assert rounds_of(peer) == list(range(total)), "all begin together and none is skipped"
    played = rounds_of(swarm.peers[5])
    assert played[0] in (AWAY_S // ROUND_S, AWAY_S // ROUND_S + 1, AWAY_S // ROUND_S + 2)
    assert played[-1] == total - 1
    refused = [event for peer in swarm.peers for event in peer.events if isinstance(event, PaperRefused)]
    assert bool(refused) == forged
    assert {event.code for event in refused} <= {"paper_delegation"}
