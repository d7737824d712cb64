"""A simulated machine over all its lives: what survives a kill (journal, trainer counters, checkpoint), and the
process, which does not."""

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
    """A checkpoint in memory, with the attributes that `peer.joining.state` uses of one on disk. It holds no trainer
    state, so the simulated trainer never resumes from a folder."""

    folder: Path
    facts: dict[str, Any]
    params: torch.Tensor
    momentum: torch.Tensor

    def load_into(self, params: torch.Tensor, momentum: torch.Tensor) -> None:
        params.copy_(self.params)
        momentum.copy_(self.momentum)


@dataclass(slots=True)
class BytesInMemory:
    """A `peer.ports.memory_store.MemoryStore` that keeps its bytes in RAM."""

    raw: bytes = b""

    def read(self) -> bytes:
        return self.raw

    def write(self, raw: bytes) -> None:
        self.raw = raw


CHECKPOINT_EVERY_S = 60.0


@dataclass(slots=True)
class MachineDisk:
    """The disk of one machine: its last checkpoint, and the stores of exchanges that survive a restart. Plays the part
    of `CheckpointStore` towards `peer.joining.state`."""

    checkpoint: MemoryCheckpoint | None = None
    quorum_store: BytesInMemory = field(default_factory=BytesInMemory)
    partner_store: BytesInMemory = field(default_factory=BytesInMemory)
    next_save_at: float = 0.0
    """Run time, in seconds, from which the next checkpoint is due."""
    full: bool = False
    """The disk is full: a new checkpoint is not written, and the former one stays."""
    receipts: MemoryReceipts | None = None
    """None: this machine exchanges no receipts, which saves two messages per pair and round."""

    def set_full(self, full: bool) -> None:
        """Simulate a full disk, or free it again."""
        self.full = full

    def enable_receipts(self) -> None:
        """Make the machine exchange receipts with partners from its next start on."""
        self.receipts = MemoryReceipts()

    def erase(self) -> None:
        """Delete the checkpoint and all stores."""
        self.checkpoint = None
        self.quorum_store.write(b"")
        if self.receipts is not None:
            self.receipts.set_aside()
        self.partner_store.write(b"")

    def save_if_due(self, outer: OuterState, round_: int, tokens: int, now: float) -> None:
        """Write a checkpoint if the last one is older than CHECKPOINT_EVERY_S. `now`: run time in seconds."""
        if now >= self.next_save_at:
            self.next_save_at = now + CHECKPOINT_EVERY_S
            self.save(outer, round_, tokens)

    def save(self, outer: OuterState, round_: int, tokens: int) -> None:
        """Write a checkpoint. Does nothing while the disk is full."""
        if self.full:
            return
        facts = {"round": round_, "tokens": tokens}
        folder = Path(f"checkpoint-{round_}")
        self.checkpoint = MemoryCheckpoint(folder, facts, outer.params.clone(), outer.momentum.clone())

    def latest(self, run_id: bytes, layout_digest: bytes) -> tuple[MemoryCheckpoint | None, list[str]]:
        return self.checkpoint, []


@dataclass(slots=True)
class Life:
    """One process of a machine, from its start to its kill or end. `parts` and `outer` are set once it has a state."""

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
    """Its reservations at relays. None: the simulation has no relays."""
    record_changed: Signal = field(init=False, default_factory=Signal)
    """Set when a change of its record should be announced soon."""
    record: PeerRecord | None = field(init=False, default=None)
    """The record made last. None: none yet."""
    parts: PeerParts | None = field(init=False, default=None)
    outer: OuterState | None = field(init=False, default=None)
    task: asyncio.Task[None] | None = field(init=False, default=None)
    finished: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Set when the process ended or was killed."""
    began_at: float = field(init=False)
    killed: bool = field(init=False, default=False)
    killed_at: float = field(init=False, default=0.0)
    over: bool = field(init=False, default=False)
    """True when the process was killed or the simulation is over: it then writes no journal events any more."""

    def __post_init__(self) -> None:
        self.began_at = asyncio.get_running_loop().time()

    @property
    def round_loop(self) -> RoundLoop | None:
        return None if self.parts is None else self.parts.loop

    @property
    def relays(self) -> tuple[RelayAddress, ...]:
        """The relays over which this peer can be called."""
        return () if self.reservations is None else self.reservations.relays()

    def relay_rate(self) -> float:
        """Return the rate of this process's best relay in bytes per second. 0: it has no relay."""
        return 0.0 if self.reservations is None else self.reservations.rate()

    def set_reservations(self, reservations: RelayReservations) -> None:
        """Set the manager of this process's reservations at relays."""
        self.reservations = reservations

    @property
    def view(self) -> PeerTable | None:
        return None if self.parts is None else self.parts.view

    def set_task(self, task: asyncio.Task[None]) -> None:
        """Set the main task of the process."""
        self.task = task

    def set_parts(self, outer: OuterState, parts: PeerParts) -> None:
        """Set the state and the parts composed around it. Called when the state is complete."""
        self.outer, self.parts = outer, parts

    def remember_record(self, record: PeerRecord) -> PeerRecord:
        """Store this record as the one made last, and return it."""
        self.record = record
        return record

    def mark_killed(self) -> None:
        """Mark the process as killed now."""
        self.over = self.killed = True
        self.killed_at = asyncio.get_running_loop().time()

    def mark_over(self) -> None:
        """Stop its journal, because the simulation is over."""
        self.over = True


@dataclass(slots=True)
class SimulatedPeer:
    """One peer of a simulation: its machine over all its lives, and everything it journaled."""

    number: int
    peer_id: PeerId
    layout: Layout
    trainer: VirtualTrainer
    """The trainer. Its counters outlive the process, as the counter file of a real trainer does."""
    events: list[Event] = field(init=False, default_factory=list)
    times: list[float] = field(init=False, default_factory=list)
    """Loop time of each event, in seconds."""
    disk: MachineDisk = field(init=False, default_factory=MachineDisk)
    lives: list[Life] = field(init=False, default_factory=list)
    final_counters: Counters | None = field(init=False, default=None)
    """The trainer's counters at the end of the simulation. None: still running."""
    listeners: list[Callable[[SimulatedPeer, Event], None]] = field(init=False, default_factory=list)
    """Called with every event, synchronously inside the peer's own code."""
    _totals: Totals = field(init=False, default_factory=Totals)
    """Totals of the first `_folded` events."""
    _folded: int = field(init=False, default=0)

    @property
    def life(self) -> Life:
        """The latest life."""
        return self.lives[-1]

    @property
    def alive(self) -> bool:
        """True while it runs: started, not killed, and the simulation not over."""
        return bool(self.lives) and not self.life.over

    @property
    def killed(self) -> bool:
        """True when the latest life ended with a kill."""
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
        """Save the trainer's counters, because the simulation is over and the trainer might still advance."""
        self.final_counters = self.trainer.counters()

    def outcomes(self) -> Counter[str]:
        """Count the outcomes of all ended rounds."""
        return Counter(event.outcome for event in self.events if isinstance(event, RoundEnded))

    def partners(self) -> dict[int, str]:
        """Return the partner of each exchanged round: round -> peer id."""
        ended = [event for event in self.events if isinstance(event, RoundEnded)]
        return {event.round: event.partner for event in ended if event.outcome == "exchanged"}

    def away_s(self, until: float) -> float:
        """Return for how many seconds the machine was dead before `until` (loop time)."""
        return sum(max(0.0, min(end, until) - begin) for begin, end in self._gaps())

    def _gaps(self) -> list[tuple[float, float]]:
        ends = [life.killed_at for life in self.lives if life.killed]
        begins = [*(life.began_at for life in self.lives[1:]), math.inf]
        return list(zip(ends, begins[: len(ends)], strict=True))

    def totals(self) -> Totals:
        """Return the totals of its journal."""
        for event in self.events[self._folded :]:
            self._totals = fold(self._totals, event, 0.0)
        self._folded = len(self.events)
        return self._totals

    def counters(self) -> Counters:
        """Return the trainer's counters; after the simulation, those of its end."""
        return self.final_counters or self.trainer.counters()

    def ledger(self) -> Ledger:
        """Return the ledger over all its lives."""
        counters = self.counters()
        elements = [self.layout.fragment_elements(number) for number in range(len(self.layout.fragments))]
        return ledger(self.totals(), counters.tokens, counters.base, elements)
