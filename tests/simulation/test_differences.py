"""Pairs that send their params with seven bits: a receiver requests again the blocks that it cannot decode. If it
cannot get them, the exchange fails, and no wrong values are used."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from peer.codec.lattice.codec import HEAD_BYTES
from peer.errors import PartnerLost
from peer.lab.sim.fake_trainer import FakeTrainer
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.setting import SwarmSetting
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.observe.events import RoundEnded
from peer.outer.state import OuterState
from peer.outer.values import OuterValues, PartnerParams, StepMethod
from peer.protocol.messages import PeerId, RoundKey, SwapReport
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

ELEMENTS, ROUNDS = 700, 6
BLOCKS = -(-ELEMENTS // 128)
LAYOUT = Layout.whole([TensorSpec("w", (ELEMENTS,))])


class Wild(FakeTrainer):
    """A trainer whose params jump in every third round, by far more than the codec expects."""

    _jumped = -1

    def _train(self, steps: int) -> float:
        loss = super()._train(steps)
        if self.round % 3 == 2 and self._jumped != self.round:  # reading its counters also trains up to now
            self._values[:130] += 5.0
            self._jumped = self.round
        return loss


def simulate(codec: str, trainer: type[FakeTrainer] = FakeTrainer) -> SimulatedSwarm:
    async def main() -> SimulatedSwarm:
        def make(number: int, layout: Layout, clock: VirtualClock) -> FakeTrainer:
            return trainer(layout, clock, step_seconds=0.1, seed=number)

        swarm = SimulatedSwarm(
            2,
            SwarmSetting(
                method=resolve(SyncSection(codec=codec, sync_every=20)),
                rounds=RoundClock("seconds", 20.0, 1, EPOCH),
                total_rounds=ROUNDS,
                seed=3,
                layout=LAYOUT,
            ),
            make_trainer=make,
        )
        await swarm.run()
        return swarm

    return run_virtual(main())


def ended(swarm: SimulatedSwarm) -> list[RoundEnded]:
    return [event for peer in swarm.peers for event in peer.events if isinstance(event, RoundEnded)]


def test_at_seven_bits_the_same_is_learned_as_at_sixteen() -> None:
    fine, coarse = simulate("bf16"), simulate("modulo7")
    assert [event.outcome for event in ended(coarse)] == ["exchanged"] * (2 * ROUNDS)
    for one, other in zip(fine.peers, coarse.peers, strict=True):
        apart = float((one.outer.params - other.outer.params).norm() / one.outer.params.norm())
        assert apart < 0.02
    least = HEAD_BYTES * BLOCKS + -(-ELEMENTS * 7 // 8) + 1
    assert min(event.bytes_received for event in ended(coarse)) == least
    assert sum(event.bytes_received for event in ended(coarse)) < 2 * ELEMENTS * 2 * ROUNDS, "than bf16"


def test_blocks_that_jumped_are_asked_for_and_come_out_right() -> None:
    fine, coarse = simulate("fp32", Wild), simulate("modulo7", Wild)
    assert [event.outcome for event in ended(coarse)] == ["exchanged"] * (2 * ROUNDS)
    sizes = {event.bytes_received for event in ended(coarse)}
    assert len(sizes) > 1, "nothing was ever asked for"
    for one, other in zip(fine.peers, coarse.peers, strict=True):
        assert torch.allclose(one.outer.params, other.outer.params, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("part", [1, 2])
def test_a_lost_request_or_answer_costs_the_exchange_and_mixes_nothing(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MemoryTransport._swap

    async def swap(self: MemoryTransport, partner: PeerId, key: RoundKey, *rest: Any) -> SwapReport:
        if key.part == part:
            await asyncio.sleep(0.5)
            raise PartnerLost("the connection broke")
        return await real(self, partner, key, *rest)

    monkeypatch.setattr(MemoryTransport, "_swap", swap)
    mixed = list[bool]()
    step = OuterState.step_with

    def watched(self: OuterState, fragment: int, values: OuterValues, method: StepMethod) -> bytes:
        mixed.append(isinstance(values, PartnerParams))
        return step(self, fragment, values, method)

    monkeypatch.setattr(OuterState, "step_with", watched)
    outcomes = [event.outcome for event in ended(simulate("modulo7", Wild))]
    assert len(mixed) == len(outcomes) == 2 * ROUNDS
    assert mixed.count(True) == outcomes.count("exchanged") < 2 * ROUNDS
    if part == 1:
        assert not any(mixed), "requests go with every exchange"
