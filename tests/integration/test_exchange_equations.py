"""Ten rounds of two peers over real gRPC in fp32 against the equations, written again in float64 and fed the parameters
that each trainer handed over in each round. The trainers are simulated; everything between them is the real thing."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from peer.aio.threads import LowPriorityThread
from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.lab.sim.directory import MemoryDirectory, MemoryDirectoryHub
from peer.lab.sim.fake_trainer import FakeTrainer
from peer.membership.amendment_sync import AmendmentSync
from peer.membership.own_record import OwnRecord
from peer.membership.peer_table import LOOK_EVERY_S, RECORD_TTL_S, PeerTable
from peer.membership.reputation import Reputation
from peer.node.assemble import LocalPolicy, PeerOutlets, PeerSetting, PeerState, PeerTempo, assemble
from peer.node.handler import RequestHandler, ServedParts
from peer.node.upload_quota import UploadQuota
from peer.observe.events import Event, RoundEnded
from peer.outer.state import OuterState
from peer.ports.peer import PeerPorts
from peer.ports.trainer import AT_ONCE, Merge, WorkRequest, WorkSnapshot
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, RunId
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.policy.upload_quota import UploadLimits
from peer.protocol.schedule import RoundClock
from peer.rounds.loop import RoundLoop
from peer.rounds.pause import LocalPause
from peer.rounds.status import RoundStatus
from peer.run.amendments import Chain
from peer.run.plan import RunPlan
from peer.run.presets import resolve
from peer.run.sections import SyncSection
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.signing import KeySigner

RUN = RunId(b"E" * 32)
LAYOUT = Layout.whole([TensorSpec("a", (300, 100)), TensorSpec("b", (17,))])
ROUNDS = 10
LR, MOMENTUM, CONSENSUS = 0.7, 0.5, 0.7
Vector = NDArray[np.float64]


class RecordingTrainer(FakeTrainer):
    """Keeps what it handed over and what it was given, each round."""

    def __init__(self, seed: int) -> None:
        super().__init__(LAYOUT, RunClock(), step_seconds=0.002, seed=seed)
        self.handed: dict[int, Vector] = {}
        self.given: dict[int, Vector] = {}

    async def work(self, request: WorkRequest) -> WorkSnapshot:
        work = await super().work(request)
        self.handed[request.key.round] = work.params.double().numpy().copy()
        return work

    async def apply(
        self, key: RoundKey, outer_params: torch.Tensor, base: int, next_round: int, merge: Merge = AT_ONCE
    ) -> None:
        self.given[key.round] = outer_params.double().numpy().copy()
        await super().apply(key, outer_params, base, next_round, merge)


@dataclass
class Peer:
    trainer: RecordingTrainer
    coordinator: RoundLoop
    view: PeerTable
    outer: OuterState
    transport: GrpcTransport
    events: list[Event] = field(default_factory=list)


async def make_peer(hub: MemoryDirectoryHub, number: int, start: torch.Tensor, peers: int) -> Peer:
    identity, clock, donor = Identity.generate(), RunClock(), RequestHandler()
    me = PeerId(identity.peer_id)
    transport = GrpcTransport(identity, RUN, donor, clock.now)
    transport.begin_run(RunTerms(LAYOUT.digest(), 2**26, "fp32"))
    port = await transport.start("127.0.0.1", 0)
    trainer, outer = RecordingTrainer(number), OuterState.fresh(LAYOUT, start.clone())
    live = RoundStatus()

    def describe() -> PeerRecord:
        now, endpoint = clock.now(), (f"127.0.0.1:{port}",)
        return PeerRecord(me, RUN, endpoint, True, 1, 1, live.round, 0.0, live.status, now, now + RECORD_TTL_S)

    method = resolve(SyncSection(preset="noloco", codec="fp32", clock="steps", sync_every=10))
    plan = RunPlan(RUN, me, method, ROUNDS, eval_every=100, min_peers=peers)
    journal: list[Event] = []
    parts = assemble(
        PeerSetting(
            plan=plan,
            rounds=RoundClock("steps", 10),
            live=live,
            own=OwnRecord(describe, describe),
            tempo=PeerTempo(
                look_every_s=LOOK_EVERY_S,
                ask_every_s=1000.0,
                rng=random.Random(number),
                doze=clock.sleep,
                read_clocks=None,
            ),
        ),
        PeerPorts(
            clock=clock,
            directory=MemoryDirectory(hub, me, RUN),
            transport=transport,
            trainer=trainer,
            signer=KeySigner(identity),
            offload=LowPriorityThread(),
        ),
        PeerState(outer=outer),
        LocalPolicy(
            pause=LocalPause(),
            quota=UploadQuota(UploadLimits(), None, journal.append, lambda line: None),
            reputation=Reputation(clock.now, journal.append),
            amendments=AmendmentSync(Chain(RUN, me), None, journal.append),
        ),
        PeerOutlets(emit=journal.append, fetch_reset=nowhere),
    )
    donor.serve(ServedParts(matchmaker=parts.matchmaker))
    return Peer(trainer, parts.loop, parts.view, outer, transport, journal)


async def nowhere(digest: bytes, records: list[PeerRecord]) -> None:
    """Nobody serves a state here."""


async def play(count: int) -> tuple[Vector, list[Peer]]:
    start = torch.randn(LAYOUT.elements, generator=torch.Generator().manual_seed(9))
    hub = MemoryDirectoryHub(RunClock().now)
    peers = [await make_peer(hub, number, start, count) for number in range(count)]

    async def run(peer: Peer) -> None:
        await peer.trainer.start(peer.outer.params, 0, None)
        await peer.view.announce()
        background = asyncio.create_task(peer.view.run())
        await peer.coordinator.run(0)
        background.cancel()
        await asyncio.wait({background})

    async with asyncio.timeout(60):
        await asyncio.gather(*(run(peer) for peer in peers))
    for peer in peers:
        await peer.transport.close()
    return start.double().numpy(), peers


def step(phi: list[Vector], delta: Vector, theta: list[Vector]) -> tuple[Vector, Vector]:
    """NoLoCo, Eq. 1-3 (sign as in the proof), of the first peer of the group."""
    progress = np.mean([t - p for t, p in zip(theta, phi, strict=True)], axis=0)
    delta = MOMENTUM * delta + LR * progress - CONSENSUS * (phi[0] - np.mean(phi, axis=0))
    return phi[0] + delta, delta


def difference(a: Vector, b: Vector) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def test_ten_rounds_of_two_equal_the_equations() -> None:
    start, peers = asyncio.run(play(2))
    assert all(
        [event.outcome for event in peer.events if isinstance(event, RoundEnded)] == ["exchanged"] * ROUNDS
        for peer in peers
    )
    phi, delta = [start, start], [np.zeros_like(start)] * 2
    for round_ in range(ROUNDS):
        theta = [peer.trainer.handed[round_] for peer in peers]
        after = [step([phi[me], phi[1 - me]], delta[me], [theta[me], theta[1 - me]]) for me in (0, 1)]
        phi, delta = [phi_ for phi_, _ in after], [delta_ for _, delta_ in after]
        for me in (0, 1):
            assert difference(peers[me].trainer.given[round_], phi[me]) < 1e-6, f"round {round_}"


def test_ten_rounds_alone_equal_the_solo_step() -> None:
    start, (peer,) = asyncio.run(play(1))
    phi, delta = start, np.zeros_like(start)
    for round_ in range(ROUNDS):
        phi, delta = step([phi], delta, [peer.trainer.handed[round_]])
        assert difference(peer.trainer.given[round_], phi) < 1e-6, f"round {round_}"
