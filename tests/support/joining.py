"""Donors and a joiner on a simulated network, in virtual time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from peer.identity import Identity
from peer.joining.context import JoinContext
from peer.joining.fetch_terms import FetchTerms, RunKnowledge
from peer.joining.resume import JoinedState
from peer.joining.state import obtain_state
from peer.lab.sim.machine import MachineDisk
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.network import Network
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.node.handler import DonatedState, RequestHandler
from peer.observe.events import Event
from peer.outer.state import OuterState
from peer.ports.directory import DialReport
from peer.protocol.messages import PeerId, PeerRecord, RunId, StateIndex, Status
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.policy.donors import StateLosses
from peer.run.home import RunFolder
from peer.run.statements.kinds import DigestDocument
from peer.state.checkpoint import CheckpointStore
from peer.state.snapshot import digest_of_state

RUN = RunId(b"r" * 32)
NODE = Identity.generate().peer_id
LAYOUT = Layout.whole([TensorSpec(f"t{n}", (2**16,)) for n in range(12)])


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtual(test())

    run.__name__ = test.__name__
    return run


def state_of(seed: int) -> OuterState:
    generator = torch.Generator().manual_seed(seed)
    return OuterState(LAYOUT, *(torch.randn(LAYOUT.elements, generator=generator) for _ in range(2)))


class DonorWorld:
    """Donors and a joiner on one network. `records`: the contents of the directory."""

    def __init__(self, *, momentum: bool = False) -> None:
        self.network, self.clock, self.momentum = Network(), VirtualClock(), momentum
        self.records: list[PeerRecord] = []
        self.said: list[str] = []
        self.shown: list[tuple[Any, ...]] = []
        self.disk = MachineDisk()
        self.proven: set[PeerId] = set()
        self.good: list[OuterState] | None = None
        """States that the trainer judges as good. None: it has no data and returns no losses."""
        self.journal: list[Event] = []
        self.asked: list[str] = []
        """Peers that were asked for their state, in order."""
        self.nodes: frozenset[PeerId] = frozenset()
        """The operator's nodes."""
        self.digests: list[DigestDocument] = []
        """Digests of states signed by the operator's node, the newest first."""
        self.most: int | None = None
        """The latest round that any peer can be in. None: unknown."""
        self.most_by_paper: int | None = None
        """`most` after a donor has shown the run's signed start. None: no donor has it."""
        self._hosts: dict[PeerId, str] = {}
        self.network.address = lambda peer: self._hosts.get(peer, "")
        self.network.on_payload_sent = lambda sender, key, source: self.asked.append(sender)
        self.transport = MemoryTransport(self.network, PeerId("joiner"), RequestHandler(), self.clock)

    def donor(
        self,
        name: str,
        outer: OuterState | None,
        round_: int,
        status: Status = Status.TRAINING,
        at: str = "",
        **give: Any,
    ) -> RequestHandler:
        """Add a donor. `at`: its address; empty: it has none."""
        donor = RequestHandler()
        if outer is not None:
            state = DonatedState(outer, lambda: round_, self.clock.now, momentum=self.momentum, **give)
            donor.register(state=state)
        MemoryTransport(self.network, PeerId(name), donor, self.clock)
        self._hosts[PeerId(name)] = at
        where = (at,) if at else ()
        self.records.append(PeerRecord(PeerId(name), RUN, where, True, 1, 1, round_, 1.0, status, 0.0, 1e12))
        return donor

    def move(self, name: str, at: str) -> None:
        """Make a donor answer at another address than that in its record."""
        self._hosts[PeerId(name)] = at

    def delay(self, donor: RequestHandler, seconds: float) -> None:
        """Make a donor's state ready only after `seconds` from now."""
        ready, on_state = self.clock.now() + seconds, donor.on_state

        def late(fresh: bool = False, wanted: str = "") -> StateIndex | None:
            return on_state(fresh, wanted) if self.clock.now() >= ready else None

        donor.on_state = late  # type: ignore[method-assign]

    async def peers(self) -> dict[PeerId, PeerRecord]:
        return {record.peer_id: record for record in self.records}

    def contact(self) -> DialReport:
        return DialReport()

    def terms(self) -> FetchTerms:
        knowledge = RunKnowledge(
            proven=frozenset(self.proven),
            nodes=self.nodes,
            furthest=lambda: self.most,
            digests=lambda: self.digests,
            ask_start=self.ask_start,
        )
        return FetchTerms(momentum=self.momentum, weigh=self.weigh, emit=self.journal.append, knowledge=knowledge)

    def sign(self, round_: int, outer: OuterState) -> None:
        """Make the operator's node sign the digest of a round's state."""
        digest = digest_of_state(outer, momentum=self.momentum).hex()
        self.digests.insert(0, DigestDocument(run=RUN.hex(), by=NODE, round=round_, digest=digest))

    async def ask_start(self, donors: Sequence[PeerRecord]) -> None:
        """Simulate a request for the run's signed start."""
        if donors and self.most_by_paper is not None:
            self.most = self.most_by_paper

    async def weigh(self, params: torch.Tensor, seed: int, within_s: float) -> StateLosses | str:
        """Return a small loss of its own for each tensor of a good state, and a large one for any other tensor."""
        if self.good is None:
            return "these tests have no data"
        tensors = params.view(len(LAYOUT.tensors), -1)
        known = [outer.params.view_as(tensors) for outer in self.good]
        wild = sum(not any(torch.equal(tensor, one[n]) for one in known) for n, tensor in enumerate(tensors))
        return StateLosses(tuple(2.0 + 0.01 * n + wild for n in range(8)), math.log(256), "of the test")

    def context(self, folder: Path | None = None) -> JoinContext:
        """Return the context of a joiner that fetches from these donors."""
        return JoinContext(
            run_id=RUN,
            me=PeerId("joiner"),
            directory=cast(Any, self),
            transport=self.transport,
            clock=self.clock,
            say=self.said.append,
            folder=None if folder is None else RunFolder(folder),
            rng=random.Random(0),
        )

    async def join(self, folder: Path | None = None) -> JoinedState:
        context, kept = self.context(folder), cast(CheckpointStore, self.disk)
        shown: Callable[..., None] = lambda *told: self.shown.append(told)  # noqa: E731
        return await obtain_state(context, LAYOUT, kept, self.terms(), progress=shown)


def trains(name: str, round_: int) -> PeerRecord:
    return PeerRecord(PeerId(name), RUN, (), True, 1, 1, round_, 1.0, Status.TRAINING, 0.0, 1e12)


def same(one: OuterState, other: OuterState) -> bool:
    return torch.equal(one.params, other.params) and torch.equal(one.momentum, other.momentum)
