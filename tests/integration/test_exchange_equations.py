"""Ten rounds of two peers over real gRPC in fp32 are compared with the equations, written again in float64 and applied
to the parameters that each trainer gave in each round. Only the trainers are simulated."""

from __future__ import annotations

import asyncio

import numpy as np
import torch
from numpy.typing import NDArray

from peer.clock.run_clock import RunClock
from peer.lab.sim.fake_trainer import FakeTrainer
from peer.observe.events import RoundEnded
from peer.ports.trainer import AT_ONCE, Merge, WorkRequest, WorkSnapshot
from peer.protocol.messages import RoundKey
from peer.protocol.model.layout import Layout, TensorSpec
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.support import grpc_peers
from tests.support.grpc_peers import GrpcPeer, GrpcRun

LAYOUT = Layout.whole([TensorSpec("a", (300, 100)), TensorSpec("b", (17,))])
ROUNDS = 10
LR, MOMENTUM, CONSENSUS = 0.7, 0.5, 0.7
Vector = NDArray[np.float64]


class RecordingTrainer(FakeTrainer):
    """Records the parameters that it gave and received in each round."""

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


def play(count: int) -> tuple[Vector, list[GrpcPeer], list[RecordingTrainer]]:
    start = torch.randn(LAYOUT.elements, generator=torch.Generator().manual_seed(9))
    method = resolve(SyncSection(preset="noloco", codec="fp32", clock="steps", sync_every=10))
    trainers = [RecordingTrainer(number) for number in range(count)]
    peers = asyncio.run(grpc_peers.play(GrpcRun(method, LAYOUT, start, count, ROUNDS), trainers.__getitem__))
    return start.double().numpy(), peers, trainers


def step(phi: list[Vector], delta: Vector, theta: list[Vector]) -> tuple[Vector, Vector]:
    """Apply NoLoCo, Eq. 1-3 (sign as in the proof), to the first peer of the group."""
    progress = np.mean([t - p for t, p in zip(theta, phi, strict=True)], axis=0)
    delta = MOMENTUM * delta + LR * progress - CONSENSUS * (phi[0] - np.mean(phi, axis=0))
    return phi[0] + delta, delta


def difference(a: Vector, b: Vector) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def test_ten_rounds_of_two_equal_the_equations() -> None:
    start, peers, trainers = play(2)
    assert all(
        [event.outcome for event in peer.events if isinstance(event, RoundEnded)] == ["exchanged"] * ROUNDS
        for peer in peers
    )
    phi, delta = [start, start], [np.zeros_like(start)] * 2
    for round_ in range(ROUNDS):
        theta = [trainer.handed[round_] for trainer in trainers]
        after = [step([phi[me], phi[1 - me]], delta[me], [theta[me], theta[1 - me]]) for me in (0, 1)]
        phi, delta = [phi_ for phi_, _ in after], [delta_ for _, delta_ in after]
        for me in (0, 1):
            assert difference(trainers[me].given[round_], phi[me]) < 1e-6, f"round {round_}"


def test_ten_rounds_alone_equal_the_solo_step() -> None:
    start, _, (trainer,) = play(1)
    phi, delta = start, np.zeros_like(start)
    for round_ in range(ROUNDS):
        phi, delta = step([phi], delta, [trainer.handed[round_]])
        assert difference(trainer.given[round_], phi) < 1e-6, f"round {round_}"
