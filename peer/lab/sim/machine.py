"""One machine of a simulation through all its lives: what survives a kill (journal, counters, checkpoint), and the
process that does not."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from peer.aio.events import Signal
from peer.lab.sim.directory import MemoryDirectory
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.trainer import VirtualTrainer
from peer.lab.sim.virtual_clock import Gate
from peer.membership.peer_table import PeerTable
from peer.membership.reachability import ReachabilityProbe
from peer.membership.relay_reservations import RelayReservations
from peer.membership.reputation import Reputation
from peer.membership.statement_sync import StatementSync
from peer.node.compose import PeerParts
from peer.node.handler import RequestHandler
from peer.node.upload_quota import UploadQuota
from peer.observe.events import Event, RoundEnded
from peer.observe.totals import Ledger, Totals, fold, ledger
from peer.outer.state import OuterState
from peer.ports.receipt_store import MemoryReceipts
from peer.ports.trainer import Counters
from peer.protocol.messages import PeerId, PeerRecord, RelayAddress
from peer.protocol.model.layout import Layout
from peer.rounds.loop import RoundLoop
from peer.rounds.pause import LocalPause
from peer.rounds.status import RoundStatus
from peer.run.admission.invitation import InvitedPeers


@dataclass(frozen=True, slots=True)
class MemoryCheckpoint:
    """A checkpoint in memory; what `peer.joining.state` asks of one on disk. The simulated trainer keeps none of its
    own state in it, so it is never resumed from a folder."""

    folder: Path
    facts: dict[str, Any]
    params: torch.Tensor
    momentum: torch.Tensor

    def load_into(self, params: torch.Tensor, momentum: torch.Tensor) -> None:
        params.copy_(self.params)
        momentum.copy_(self.momentum)


@dataclass(slots=True)
class BytesInMemory:
    """A `MemoryStore` in memory."""

    raw: bytes = b""

    def read(self) -> bytes:
        return self.raw

    def keep(self, raw: bytes) -> None:
        self.raw = raw


CHECKPOINT_EVERY_S = 60.0


@dataclass(slots=True)
class MachineDisk:
    """The disk of one machine: its last checkpoint, and what exchanges are not to forget."""

    checkpoint: MemoryCheckpoint | None = None
    quorum_store: BytesInMemory = field(default_factory=BytesInMemory)
    partner_store: BytesInMemory = field(default_factory=BytesInMemory)
    next_save_at: float = 0.0
    """When the next checkpoint is, run time."""
    full: bool = False
    """What is to be kept now is lost, the former checkpoint stays."""
    receipts: MemoryReceipts | None = None
    """None: this machine exchanges none, which saves a simulation two messages a pair and round."""

    def set_full(self, full: bool) -> None:
        """The disk is full from here on, or has room again."""
        self.full = full

    def enable_receipts(self) -> None:
        """Exchange receipts with partners from the next start on."""
        self.receipts = MemoryReceipts()

    def erase(self) -> None:
        """Nothing of it is left."""
        self.checkpoint = None
        self.quorum_store.keep(b"")
        if self.receipts is not None:
            self.receipts.set_aside()
        self.partner_store.keep(b"")

    def save_if_due(self, outer: OuterState, round_: int, tokens: int, now: float) -> None:
        """Write a checkpoint when the last one is old."""
        if now >= self.next_save_at:
            self.next_save_at = now + CHECKPOINT_EVERY_S
            self.save(outer, round_, tokens)

    def save(self, outer: OuterState, round_: int, tokens: int) -> None:
        if self.full:
            return
        facts = {"round": round_, "tokens": tokens}
        folder = Path(f"checkpoint-{round_}")
        self.checkpoint = MemoryCheckpoint(folder, facts, outer.params.clone(), outer.momentum.clone())

    def latest(self, run_id: bytes, layout_digest: bytes) -> tuple[MemoryCheckpoint | None, list[str]]:
        return self.checkpoint, []


@dataclass(slots=True)
class Life:
    """One process, from its start to its kill or end. Its parts come when it has a state."""

    gate: Gate
    directory: MemoryDirectory
    transport: MemoryTransport
    handler: RequestHandler
    reach: ReachabilityProbe
    pause: LocalPause
    quota: UploadQuota
    reputation: Reputation
    statements: StatementSync
    invited: InvitedPeers
    round_status: RoundStatus
    rng: random.Random
    reservations: RelayReservations | None = field(init=False, default=None)
    """Its places at relays. None: nobody relays."""
    record_changed: Signal = field(init=False, default_factory=Signal)
    """Rung when others should know soon of what is new in its record."""
    record: PeerRecord | None = field(init=False, default=None)
    """The last that was made of it."""
    parts: PeerParts | None = field(init=False, default=None)
    outer: OuterState | None = field(init=False, default=None)
    task: asyncio.Task[None] | None = field(init=False, default=None)
    finished: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """It ended, or was killed."""
    began_at: float = field(init=False)
    killed: bool = field(init=False, default=False)
    killed_at: float = field(init=False, default=0.0)
    over: bool = field(init=False, default=False)
    """It was killed, or the simulation is over: it writes to no journal any more."""

    def __post_init__(self) -> None:
        self.began_at = asyncio.get_running_loop().time()

    @property
    def round_loop(self) -> RoundLoop | None:
        return None if self.parts is None else self.parts.loop

    @property
    def relays(self) -> tuple[RelayAddress, ...]:
        """The relays at which it can be called."""
        return () if self.reservations is None else self.reservations.relays()

    def relay_rate(self) -> float:
        """Bytes per second that its best relay passes on; 0: it has none."""
        return 0.0 if self.reservations is None else self.reservations.rate()

    def set_reservations(self, reservations: RelayReservations) -> None:
        """It keeps these places."""
        self.reservations = reservations

    @property
    def view(self) -> PeerTable | None:
        return None if self.parts is None else self.parts.view

    def set_task(self, task: asyncio.Task[None]) -> None:
        """Its main task runs."""
        self.task = task

    def set_parts(self, outer: OuterState, parts: PeerParts) -> None:
        """It has a complete state, and the parts around it."""
        self.outer, self.parts = outer, parts

    def remember_record(self, record: PeerRecord) -> PeerRecord:
        """The record made last; the same."""
        self.record = record
        return record

    def mark_killed(self) -> None:
        """Its machine is gone."""
        self.over = self.killed = True
        self.killed_at = asyncio.get_running_loop().time()

    def mark_over(self) -> None:
        """It writes nothing more."""
        self.over = True


@dataclass(slots=True)
class SimulatedPeer:
    """One peer of a simulation and everything it journaled, over all its lives."""

    number: int
    peer_id: PeerId
    layout: Layout
    trainer: VirtualTrainer
    """Its counters are the file that outlives the process."""
    events: list[Event] = field(init=False, default_factory=list)
    times: list[float] = field(init=False, default_factory=list)
    """When each was journaled, seconds from the start of the simulation's loop."""
    disk: MachineDisk = field(init=False, default_factory=MachineDisk)
    lives: list[Life] = field(init=False, default_factory=list)
    final_counters: Counters | None = field(init=False, default=None)
    """The trainer's, when the simulation ended."""
    listeners: list[Callable[[SimulatedPeer, Event], None]] = field(init=False, default_factory=list)
    """Called with every event, in the middle of the peer's own doing."""
    _totals: Totals = field(init=False, default_factory=Totals)
    """Of the first `_folded` events."""
    _folded: int = field(init=False, default=0)

    @property
    def life(self) -> Life:
        """The latest."""
        return self.lives[-1]

    @property
    def alive(self) -> bool:
        return bool(self.lives) and not self.life.over

    @property
    def killed(self) -> bool:
        """Its latest life ended with a kill."""
        return self.life.killed

    @property
    def parts(self) -> PeerParts:
        assert self.life.parts is not None, "it has no state yet"
        return self.life.parts

    @property
    def round_loop(self) -> RoundLoop:
        return self.parts.loop

    @property
    def pause(self) -> LocalPause:
        """The volunteer's own pause."""
        return self.life.pause

    @property
    def outer(self) -> OuterState:
        assert self.life.outer is not None, "it has no state yet"
        return self.life.outer

    @property
    def transport(self) -> MemoryTransport:
        return self.life.transport

    @property
    def reach(self) -> ReachabilityProbe:
        return self.life.reach

    @property
    def statements(self) -> StatementSync:
        return self.life.statements

    def journal(self, event: Event) -> None:
        self.events.append(event)
        self.times.append(asyncio.get_running_loop().time())
        for hear in self.listeners:
            hear(self, event)

    def freeze_counters(self) -> None:
        """The simulation is over: its trainer's counters stay as they are now."""
        self.final_counters = self.trainer.counters()

    def outcomes(self) -> Counter[str]:
        return Counter(event.outcome for event in self.events if isinstance(event, RoundEnded))

    def partners(self) -> dict[int, str]:
        """Round to partner, of the exchanged rounds."""
        ended = [event for event in self.events if isinstance(event, RoundEnded)]
        return {event.round: event.partner for event in ended if event.outcome == "exchanged"}

    def away_s(self, until: float) -> float:
        """How long it was dead, up to a moment of the simulation."""
        return sum(max(0.0, min(end, until) - begin) for begin, end in self._gaps())

    def _gaps(self) -> list[tuple[float, float]]:
        ends = [life.killed_at for life in self.lives if life.killed]
        begins = [*(life.began_at for life in self.lives[1:]), math.inf]
        return list(zip(ends, begins[: len(ends)], strict=True))

    def totals(self) -> Totals:
        """Of its journal."""
        for event in self.events[self._folded :]:
            self._totals = fold(self._totals, event, 0.0)
        self._folded = len(self.events)
        return self._totals

    def counters(self) -> Counters:
        """The trainer's; after the simulation, as they were when it ended."""
        return self.final_counters or self.trainer.counters()

    def ledger(self) -> Ledger:
        """Over all its lives."""
        counters = self.counters()
        elements = [self.layout.fragment_elements(number) for number in range(len(self.layout.fragments))]
        return ledger(self.totals(), counters.tokens, counters.base, elements)
