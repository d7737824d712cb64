"""One of eight members of a group sends something else than what it did, and claims more than it did; the others learn
nearly as well as without it. `benchmarks/liars.py` has the same with the real model."""

from __future__ import annotations

import statistics

import pytest

import peer.exchange.group.reduce
from peer.lab.sim.setting import SwarmSetting
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.tiny_model import TENSORS, TinyTrainer, first_params, loss_of
from peer.lab.sim.trainer import VirtualTrainer
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.protocol.model.fragments import cut
from peer.protocol.model.layout import Layout
from peer.protocol.schedule import RoundClock
from peer.run.presets import resolve
from peer.run.sections import SyncSection
from tests.support.lying_trainer import Lying

REPLICAS, LIAR, SEED = 8, 3, 5
STEPS, ROUNDS = 15, 16


class TinyLiar(Lying, TinyTrainer):
    """See `tests.support.lying_trainer`."""


def loss(attack: float | None) -> float:
    """Of the honest ones, nats a symbol."""
    method = resolve(SyncSection(preset="diloco", clock="steps", sync_every=STEPS))
    layout = cut(TENSORS, fragments=1, pattern="whole")

    def trainer(number: int, layout: Layout, clock: VirtualClock) -> VirtualTrainer:
        kind = TinyLiar if number == LIAR else TinyTrainer
        made = kind(layout, clock, step_seconds=0.1, seed=SEED, data=f"peer {number}")
        if isinstance(made, TinyLiar):
            made.attack = attack
        return made

    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(
            REPLICAS,
            SwarmSetting(
                method=method,
                rounds=RoundClock("steps", STEPS, 1, EPOCH),
                total_rounds=ROUNDS,
                seed=SEED,
                layout=layout,
                first=first_params(SEED, layout),
                min_peers=REPLICAS,
            ),
            make_trainer=trainer,
        )
        await swarm.run()
        return swarm

    honest = [peer for peer in run_virtual(main()).peers if peer.number != LIAR]
    return statistics.fmean(loss_of(peer.outer.params, layout, SEED) for peer in honest)


@pytest.mark.parametrize("attack", [10.0, 9.0, -9.0, -10.0, -1.0, None], ids=lambda attack: f"times {attack}")
def test_what_it_sends_spoils_little(attack: float | None) -> None:
    print(f"seed {SEED}")
    assert loss(attack) <= 1.08 * loss(1.0), "of a loss that still falls fast"


def test_without_a_bound_it_spoils_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer.exchange.group.reduce, "factors", lambda norms, tokens: [1.0] * len(norms))
    assert loss(-10.0) > 1.5 * loss(1.0)
