"""Rounds of production peers write receipt chains in which both partners state the same."""

from __future__ import annotations

import asyncio
import io

import pytest
import torch

from peer.clock.run_clock import RunClock
from peer.lab.sim.fake_trainer import FakeTrainer
from peer.lab.sim.process import KeylessSigner
from peer.lab.sim.setting import SwarmSetting, layout_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.observe.events import ReceiptRefused, RoundEnded
from peer.observe.receipt_file import check_stream
from peer.ports.receipt_store import MemoryReceipts
from peer.protocol.messages import PeerId
from peer.protocol.pair.receipt_chain import ChainCheck, Verify
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from peer.transport.signing import holds
from tests.support.grpc_peers import GrpcPeer, GrpcRun, play
from tests.support.signed_receipts import file_of

ROUNDS = 4


def checked(receipts: MemoryReceipts, verify: Verify = holds) -> ChainCheck:
    return check_stream(io.BytesIO(file_of(receipts.records)), verify)[0]


@pytest.mark.parametrize("chosen", [{"preset": "noloco", "codec": "bf16"}, {"preset": "noloco", "codec": "modulo7"}])
def test_two_peers_sign_every_round_over_sockets(chosen: dict[str, str]) -> None:
    method = resolve(SyncSection(clock="steps", sync_every=10, **chosen))
    layout = layout_of(method, 4 * 128)

    def trainer(number: int) -> FakeTrainer:
        return FakeTrainer(layout, RunClock(), step_seconds=0.002, seed=number)

    run = GrpcRun(method, layout, torch.zeros(layout.elements), 2, ROUNDS)
    one, other = asyncio.run(play(run, trainer))
    ours, theirs = checked(one.receipts), checked(other.receipts)
    assert min(ours.entries, theirs.entries) >= ROUNDS - 1, "the last may be cut off by the end"
    assert list(ours.partners) == [theirs.owner]
    assert list(theirs.partners) == [ours.owner]
    said = ours.partners[theirs.owner]
    assert said.accepted == said.accepted_by_it == said.rounds == ours.entries
    exchanged = [event for event in one.events if isinstance(event, RoundEnded)][: said.rounds]
    assert said.bytes_received == sum(event.bytes_received for event in exchanged) > 0
    assert not any(isinstance(event, ReceiptRefused) for peer in (one, other) for event in peer.events)
    _facts_agree(one, other)


def _facts_agree(one: GrpcPeer, other: GrpcPeer) -> None:
    """Check that each peer's own statement agrees with the one that its partner has stored."""
    assert one.parts.members.receipts is not None
    assert other.parts.members.receipts is not None
    shown = [one.parts.members.receipts.shown()[0].statement, other.parts.members.receipts.shown()[0].statement]
    if shown[0].key == shown[1].key:
        assert shown[0].received == shown[1].sent
        assert shown[0] == shown[1].mirrored(shown[0].opinion)


def test_simulated_peers_sign_as_real_ones_do() -> None:
    method = resolve(SyncSection(clock="seconds", sync_every=20.0, preset="streaming-noloco"))

    async def main() -> SimulatedSwarm:
        setting = SwarmSetting(
            method=method,
            rounds=RoundClock("seconds", method.sync_every, method.fragments, EPOCH),
            total_rounds=3 * ROUNDS,
            seed=3,
            layout=layout_of(method, 4 * 128),
            min_peers=4,
        )
        swarm = SimulatedSwarm(4, setting, step_seconds=2.0)
        for peer in swarm.peers:
            peer.disk.enable_receipts()
        await swarm.run([])
        return swarm

    swarm = run_virtual(main())
    seal = KeylessSigner(PeerId(""))
    for peer in swarm.peers:
        exchanged = peer.outcomes()["exchanged"]
        assert exchanged > ROUNDS
        assert peer.disk.receipts is not None
        assert checked(peer.disk.receipts, seal.verify).entries >= exchanged - 2
