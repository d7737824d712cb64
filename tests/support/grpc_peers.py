"""Production peers in one process over real gRPC and TLS, each behind a relay that counts bytes. Trainers and directory
are simulated in real time; everything between them is real."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from peer.aio.threads import LowPriorityThread
from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.lab.sim.directory import MemoryDirectory, MemoryDirectoryHub
from peer.lab.sim.fake_trainer import FakeTrainer
from peer.membership.own_record import OwnRecord
from peer.membership.peer_table import LOOK_EVERY_S, RECORD_TTL_S
from peer.membership.reputation import Reputation
from peer.membership.statement_sync import StatementSync
from peer.methods.method import Method
from peer.node.compose import PeerParts, compose_peer
from peer.node.handler import RequestHandler
from peer.node.upload_quota import UploadQuota
from peer.observe.events import Event
from peer.outer.state import OuterState
from peer.ports.peer import PeerPorts
from peer.ports.receipt_store import MemoryReceipts
from peer.protocol.messages import PeerId, PeerRecord, RunId
from peer.protocol.model.layout import Layout
from peer.protocol.policy.upload_quota import UploadLimits
from peer.rounds.pause import LocalPause
from peer.rounds.status import RoundStatus
from peer.run.plan import RunPlan
from peer.run.statements.log import StatementLog
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.signing import KeySigner
from tests.support.cutting_relay import Wire, before

RUN = RunId(b"E" * 32)
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class GrpcRun:
    """A run and its number of peers."""

    method: Method
    layout: Layout
    first: torch.Tensor
    peers: int
    rounds: int


@dataclass
class GrpcPeer:
    trainer: FakeTrainer
    parts: PeerParts
    outer: OuterState
    transport: GrpcTransport
    wire: Wire
    receipts: MemoryReceipts
    events: list[Event] = field(default_factory=list)


async def play(run: GrpcRun, make_trainer: Callable[[int], FakeTrainer]) -> list[GrpcPeer]:
    """Run all peers to the end of the run."""
    hub = MemoryDirectoryHub(RunClock().now)

    async def live(peer: GrpcPeer) -> None:
        await peer.trainer.start(peer.outer.params, 0, None)
        await peer.parts.view.look()
        duties = [peer.parts.view.run()]
        if (receipts := peer.parts.members.receipts) is not None:
            duties.append(receipts.run())
        background = [asyncio.create_task(duty) for duty in duties]
        await peer.parts.loop.run(0)
        for task in background:
            task.cancel()
        await asyncio.wait(background)

    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(TIMEOUT_S):
        peers = [await _made(stack, run, hub, number, make_trainer(number)) for number in range(run.peers)]
        try:
            for peer in peers:
                await peer.parts.view.announce()
            await asyncio.gather(*(live(peer) for peer in peers))
        finally:
            await asyncio.gather(*(peer.transport.close() for peer in peers))
    return peers


async def _made(
    stack: contextlib.AsyncExitStack, run: GrpcRun, hub: MemoryDirectoryHub, number: int, trainer: FakeTrainer
) -> GrpcPeer:
    identity, clock, handler, wire = Identity.generate(), RunClock(), RequestHandler(), Wire()
    me, live, journal = PeerId(identity.peer_id), RoundStatus(), list[Event]()
    transport = GrpcTransport(identity, RUN, handler, clock.now)
    transport.begin_run(RunTerms(run.layout.digest(), 2**26, run.method.codec))
    inner = f"127.0.0.1:{await transport.start('127.0.0.1', 0)}"
    endpoints = (await stack.enter_async_context(before(inner, wire)),)
    receipts = MemoryReceipts()
    outer, bulk = OuterState.fresh(run.layout, run.first.clone()), LowPriorityThread()
    stack.callback(bulk.close)

    def describe() -> PeerRecord:
        now = clock.now()
        return PeerRecord(me, RUN, endpoints, True, 1, 1, live.round, 0.0, live.status, now, now + RECORD_TTL_S)

    parts = compose_peer(
        plan=RunPlan(RUN, me, run.method, run.rounds, eval_every=100, min_peers=run.peers),
        rounds=run.method.round_clock(),
        ports=PeerPorts(
            clock=clock,
            directory=MemoryDirectory(hub, me, RUN),
            transport=transport,
            trainer=trainer,
            signer=KeySigner(identity),
            offload=bulk,
        ),
        outer=outer,
        live=live,
        own=OwnRecord(describe, describe),
        reputation=Reputation(clock.now, journal.append),
        pause=LocalPause(),
        quota=UploadQuota(UploadLimits(), None, journal.append, lambda line: None),
        statements=StatementSync(StatementLog(RUN, me), journal.append),
        look_every_s=LOOK_EVERY_S,
        ask_every_s=1000.0,
        rng=random.Random(number),
        doze=clock.sleep,
        clocks=None,
        emit=journal.append,
        fetch_reset=_nowhere,
        receipts=receipts,
    )
    handler.register(
        peer_table=parts.view, matchmaker=parts.matchmaker, group=parts.group, receipts=parts.members.receipts
    )
    return GrpcPeer(trainer, parts, outer, transport, wire, receipts, journal)


async def _nowhere(digest: bytes, records: list[PeerRecord]) -> None:
    """Return None, because no node serves a state."""
