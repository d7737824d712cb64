"""The state of a restart must be fetched from a node that has it, and no other state fetched twice."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import torch

from peer.aio.threads import inline
from peer.joining.reset import ResetStates, digest_of, founded_on
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.network import Network
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.node.handler import DonatedState, RequestHandler
from peer.outer.state import OuterState
from peer.protocol.messages import PeerId, PeerRecord, RunId, StateIndex, Status
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.policy.amendments import RunPolicy

LAYOUT = Layout.whole([TensorSpec("w", (1000,))])
WANTED, ANOTHER = torch.arange(1000.0), torch.zeros(1000)


class Counting(RequestHandler):
    """A transport that counts the requested pieces."""

    def __init__(self, params: torch.Tensor) -> None:
        super().__init__()
        self.pieces = 0
        self.give(OuterState.fresh(LAYOUT, params.clone()))

    def give(self, outer: OuterState) -> None:
        self.outer = outer
        self.register(state=DonatedState(outer, lambda: 0, VirtualClock().now))

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        self.pieces += 1
        return super().on_piece(snapshot, piece)

    def on_state(self, fresh: bool = False, wanted: str = "") -> StateIndex | None:
        self.give(self.outer)  # a new snapshot each time
        return super().on_state(fresh, wanted)


class Nodes:
    """Operator's nodes with given states, and a peer that asks them."""

    def __init__(self, *states: torch.Tensor, status: Status = Status.SERVING) -> None:
        network, clock = Network(), VirtualClock()
        self.donors = [Counting(params) for params in states]
        self.records = [self._record(number, status) for number in range(len(states))]
        for donor, record in zip(self.donors, self.records, strict=True):
            MemoryTransport(network, record.peer_id, donor, clock)
        self.asking = ResetStates(LAYOUT, MemoryTransport(network, PeerId("me"), RequestHandler(), clock), inline)

    @staticmethod
    def _record(number: int, status: Status) -> PeerRecord:
        return PeerRecord(
            PeerId(f"node-{number}"), RunId(b"r" * 32), (f"memory:{number}",), True, 1, 1, 0, 0.0, status, 0.0, 60.0
        )

    async def fetch(self) -> torch.Tensor | None:
        return await self.asking.fetch(digest_of(WANTED), self.records)


def virtually(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtual(test())

    run.__name__ = test.__name__
    return run


@virtually
async def test_it_comes_from_the_node_that_has_it() -> None:
    nodes = Nodes(ANOTHER, WANTED)
    found = await nodes.fetch()
    assert found is not None
    assert torch.equal(found, WANTED)


@virtually
async def test_another_state_is_fetched_once_and_never_taken() -> None:
    nodes = Nodes(ANOTHER)
    for _ in range(5):
        assert await nodes.fetch() is None
    assert nodes.donors[0].pieces == len(LAYOUT.pieces())
    nodes.donors[0].give(OuterState.fresh(LAYOUT, WANTED.clone()))
    found = await nodes.fetch()
    assert found is not None
    assert torch.equal(found, WANTED)


@virtually
async def test_peers_that_train_are_not_asked() -> None:
    nodes = Nodes(WANTED, status=Status.TRAINING)
    assert await nodes.fetch() is None
    assert nodes.donors[0].pieces == 0


def test_a_donors_state_counts_as_refounded_by_its_round_or_by_being_it() -> None:
    now = RunPolicy(founded=digest_of(WANTED), founded_round=7)
    assert founded_on(ANOTHER, 7, now) == now.founded
    assert founded_on(ANOTHER, 6, now) == b""
    assert founded_on(WANTED, 0, now) == now.founded
    assert founded_on(WANTED, 9, RunPolicy()) == b""
