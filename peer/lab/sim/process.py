"""The processes of simulated machines. Each is the production peer, composed by `peer.node.compose`, around simulated
ports."""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from functools import partial
from typing import cast

import torch

from peer.aio.threads import inline
from peer.exchange.build import MakeStrategy, make_strategy
from peer.exchange.deadlines import ASSUMED_RATE
from peer.identity import Identity
from peer.joining.context import JoinContext
from peer.joining.fetch_terms import FetchTerms
from peer.joining.invitation import OwnAdmission
from peer.joining.resume import JoinedState, Staleness
from peer.joining.sequence import JoinSequence, JoinTerms, Stage
from peer.joining.state import obtain_state
from peer.joining.statements import catch_up
from peer.lab.sim.directory import MemoryDirectory, MemoryDirectoryHub
from peer.lab.sim.machine import Life, SimulatedPeer
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.network import Network
from peer.lab.sim.setting import SwarmSetting, SwarmWorld
from peer.lab.sim.virtual_clock import Gate, VirtualClock, nap
from peer.membership.own_record import OwnRecord
from peer.membership.peer_table import lifetime, pace
from peer.membership.reachability import ReachabilityProbe
from peer.membership.relay_reservations import RelayReservations, RelaySetting
from peer.membership.reputation import Reputation
from peer.membership.statement_sync import ASK_EVERY_S, StatementSync
from peer.methods.codec_specs import FORMS
from peer.node.compose import PeerParts, compose_peer
from peer.node.handler import DonatedState, RequestHandler
from peer.node.record import PeerAddress, describe_self
from peer.node.upload_quota import UploadQuota
from peer.observe import events
from peer.outer.state import OuterState
from peer.ports.memory_store import ExchangeStores
from peer.ports.peer import PeerPorts
from peer.protocol.messages import PeerId, PeerRecord, RunId
from peer.protocol.model.layout import Layout
from peer.protocol.policy.upload_quota import Moment, UploadLimits, first_of_next
from peer.protocol.swarm.reachability import SETTLED_EVERY_S
from peer.protocol.swarm.suspend_detection import ClockReading
from peer.rounds.pause import LocalPause
from peer.rounds.status import RoundStatus
from peer.run.admission.invitation import InvitedPeers
from peer.run.plan import RunPlan
from peer.run.statements.kinds import PAPER
from peer.run.statements.log import StatementLog
from peer.state.checkpoint import CheckpointStore
from peer.transport.policy import TransportPolicy

RUN = RunId(b"simulated run ".ljust(32, b"."))
OPERATOR = Identity.generate()
ASKS_A_ROUND = 4
"""Number of times that a peer looks for amendments in a long round. A few are enough, because an amendment takes effect
only some rounds later."""


class KeylessSigner:
    """A signer for peers without keys: a keyed hash that anybody could forge. Fast, and enough where no peer lies."""

    def __init__(self, me: PeerId) -> None:
        self._me = me

    def sign(self, raw: bytes) -> bytes:
        return hashlib.blake2b(raw, key=self._me.encode()[:64], digest_size=64).digest()

    def verify(self, peer: PeerId, raw: bytes, signature: bytes) -> bool:
        return KeylessSigner(peer).sign(raw) == signature


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The run, the world and the shared hubs of all processes of a swarm."""

    setting: SwarmSetting
    world: SwarmWorld
    layout: Layout
    network: Network
    hub: MemoryDirectoryHub
    states: dict[bytes, torch.Tensor]
    """The states that an operator's node serves, by digest."""
    liars: Mapping[int, MakeStrategy] = field(default_factory=dict)
    """Number of a lying peer -> the function that builds its exchange strategy."""

    @property
    def round_s(self) -> float:
        """Length of a round in seconds. 0: rounds are counted in steps."""
        rounds = self.setting.rounds
        return rounds.round_length if rounds.kind == "seconds" else 0.0

    @property
    def relay_nodes(self) -> tuple[PeerId, ...]:
        """The ids of the operator's nodes, which relay."""
        return () if self.world.closed is None else self.world.closed.node_ids

    @property
    def pace_s(self) -> float:
        """Seconds between two reads of the directory."""
        return pace(self.round_s or None)

    async def fetch_reset(self, digest: bytes, records: list[PeerRecord]) -> torch.Tensor | None:
        """Return the state of this digest from an operator's node, without a transfer. None: no node has it."""
        return self.states.get(digest)


def start_process(run: SimulatedRun, peer: SimulatedPeer) -> Life:
    """Start a new process on the machine. It answers calls, and has no state yet."""
    clock, handler, live = VirtualClock(), RequestHandler(), RoundStatus()
    rng = random.Random(run.setting.seed * 1000 + peer.number + len(peer.lives) * 10**9)
    gate = run.network.gates[peer.peer_id] = Gate()
    in_steps = run.setting.rounds.kind == "steps"
    log = StatementLog(
        RUN, OPERATOR.peer_id, wants_start=not in_steps and not run.setting.rounds.start, in_steps=in_steps
    )
    made: list[Life] = []

    def emit(event: events.Event) -> None:
        journal(peer, made[0], event)

    quota = _quota(run, peer, emit, lambda: made[0].record_changed.set())
    reputation = Reputation(clock.now, emit)
    transport = MemoryTransport(
        run.network,
        peer.peer_id,
        handler,
        clock,
        TransportPolicy(quota=quota, reputation=reputation),
        lambda other: log.policy(live.round).kept_out.get(other, ""),
    )
    life = Life(
        gate,
        MemoryDirectory(run.hub, peer.peer_id, RUN),
        transport,
        handler,
        ReachabilityProbe(transport, clock, rng, lambda: address_of(run, peer), trusted=run.relay_nodes),
        LocalPause(now=clock.now),
        quota,
        reputation,
        StatementSync(log, emit),
        InvitedPeers(log, clock.now, required=False),
        live,
        rng,
    )
    made.append(life)
    if run.world.closed is not None:
        life.set_reservations(_reservations(run, peer, life))
    handler.register(statements=life.statements)
    peer.lives.append(life)
    return life


def _reservations(run: SimulatedRun, peer: SimulatedPeer, life: Life) -> RelayReservations:
    """Make the manager of this process's reservations. It reserves places once the process finds that no peer can dial
    it."""
    setting = RelaySetting(
        me=peer.peer_id,
        closed=lambda: life.reach.reachability.reachable() is False,
        nodes=run.relay_nodes,
        emit=lambda event: journal(peer, life, event),
        changed=life.record_changed.set,
    )
    rng = random.Random(f"relays {run.setting.seed} {peer.number} {len(peer.lives)}")
    return RelayReservations(life.transport, VirtualClock(), rng, setting)


def _quota(
    run: SimulatedRun, peer: SimulatedPeer, emit: Callable[[events.Event], None], changed: Callable[[], None]
) -> UploadQuota:
    """Make the volunteer's upload quota, on virtual days. Its count does not survive a restart of the machine."""
    limits = run.world.uploads.get(peer.number, UploadLimits())
    now, ticks = VirtualClock().now, asyncio.get_running_loop().time
    quota = UploadQuota(limits, None, emit, lambda line: None, now, ticks, virtual_day, changed)
    method, layout = run.setting.method, run.layout
    if method.exchanges:
        elements = max(layout.fragment_elements(fragment) for fragment in range(len(layout.fragments)))
        codec = FORMS[method.codec]
        quota.reserve_for_exchange(math.ceil(codec.nbytes(method.vectors * elements) * run.network.weight))
    return quota


def virtual_day(now: float) -> Moment:
    """Return the date of `now` (seconds since the epoch) in UTC, and the seconds left in its day and month."""
    at = datetime.fromtimestamp(now, UTC)
    midnight = datetime(at.year, at.month, at.day, tzinfo=UTC) + timedelta(days=1)
    month = datetime.combine(first_of_next(at.date()), time(), UTC)
    return Moment(at.date(), midnight.timestamp() - now, month.timestamp() - now)


def journal(peer: SimulatedPeer, life: Life, event: events.Event) -> None:
    """Append an event to the machine's journal while the process lives. `DirectoryChanged` is left out, because it
    would be most of the journal of a large swarm."""
    if not life.over and not isinstance(event, events.DirectoryChanged):
        peer.journal(event)


def address_of(run: SimulatedRun, peer: SimulatedPeer) -> tuple[str, ...]:
    """Return the addresses that the peer announces."""
    return (run.network.address(peer.peer_id) or f"memory:{peer.number}",)


def describe(run: SimulatedRun, peer: SimulatedPeer, life: Life) -> PeerRecord:
    """Make the peer's record as of now."""
    reachable, relays = life.reach.reachable, life.relays
    address = PeerAddress(peer.peer_id, RUN, lambda: address_of(run, peer), lambda: reachable, relays=lambda: relays)
    live = life.round_status
    return life.remember_record(
        describe_self(
            address,
            status=live.announced(life.quota.blocked_reason()),
            round_=live.round,
            tokens_per_s=1.0,
            now=run.hub.now(),
            lifetime_s=lifetime(run.pace_s),
        )
    )


def last_record(run: SimulatedRun, peer: SimulatedPeer, life: Life) -> PeerRecord:
    """Return the previous record if a new one would differ from it only in its times, else a new record."""
    last, live = life.record, life.round_status
    if last is None or last.round != live.round or last.status is not live.announced(life.quota.blocked_reason()):
        return describe(run, peer, life)
    if last.reachable != life.reach.reachable or last.relays != (() if last.reachable else life.relays):
        return describe(run, peer, life)
    return last


def build_parts(run: SimulatedRun, peer: SimulatedPeer, life: Life, outer: OuterState, stale: str = "") -> PeerParts:
    """Compose the peer around a complete state, as the daemon does. `stale`: why the state may be far behind; empty: it
    is not."""
    staleness = Staleness(stale)
    clock, setting, live, of = VirtualClock(), run.setting, life.round_status, (run, peer, life)

    def emit(event: events.Event) -> None:
        journal(peer, life, event)
        staleness.on_event(event, 0.0)

    async def keep(round_: int) -> None:
        peer.disk.save_if_due(outer, round_, peer.trainer.counters().tokens, clock.now())

    async def doze(seconds: float) -> None:
        """Sleep for `seconds`, but longer in long rounds: then there is time to retry peers that failed."""
        await nap(max(seconds, run.pace_s / 6))

    parts = compose_peer(
        plan=_plan(run, peer),
        rounds=setting.rounds,
        ports=PeerPorts(
            clock=clock,
            directory=life.directory,
            transport=life.transport,
            trainer=peer.trainer,
            signer=KeylessSigner(peer.peer_id),
            offload=inline,
            secret=partial(life.rng.getrandbits, 64),
        ),
        outer=outer,
        live=live,
        own=OwnRecord(partial(describe, *of), partial(last_record, *of), life.record_changed, life.relay_rate),
        reputation=life.reputation,
        pause=life.pause,
        quota=life.quota,
        statements=life.statements,
        invited=life.invited,
        look_every_s=run.pace_s,
        ask_every_s=max(ASK_EVERY_S, run.round_s / ASKS_A_ROUND),
        rng=life.rng,
        doze=doze,
        clocks=read_clocks if run.world.stops else None,
        emit=emit,
        fetch_reset=run.fetch_reset,
        on_boundary=keep,
        receipts=peer.disk.receipts,
        stores=ExchangeStores(quorums=peer.disk.quorum_store, partners=peer.disk.partner_store),
        upto=dict(peer.totals().upto),
        make=run.liars.get(peer.number, make_strategy),
    )
    life.set_parts(outer, parts)
    group = parts.group
    state = DonatedState(
        outer,
        lambda: live.round,
        clock.now,
        momentum=group is not None,
        group=group,
        outdated_reason=lambda: staleness.why,
    )
    life.handler.register(
        peer_table=parts.view, matchmaker=parts.matchmaker, receipts=parts.members.receipts, group=group, state=state
    )
    return parts


def read_clocks() -> ClockReading:
    """Read the clocks of a machine that never sleeps. Only its processes may be stopped."""
    now = asyncio.get_running_loop().time()
    return ClockReading(now, now, now)


def _plan(run: SimulatedRun, peer: SimulatedPeer) -> RunPlan:
    setting = run.setting
    return RunPlan(
        RUN,
        peer.peer_id,
        setting.method,
        setting.total_rounds,
        eval_every=setting.eval_every,
        min_peers=setting.min_peers,
        nodes=run.world.nodes,
        assumed_rate=ASSUMED_RATE / run.network.weight,
    )


async def run_founder(run: SimulatedRun, peer: SimulatedPeer, life: Life, first: torch.Tensor) -> None:
    """Run a peer that is present from the run's first round, with the common first params (flat fp32)."""
    parts = build_parts(run, peer, life, OuterState.fresh(run.layout, first.clone()))
    await peer.trainer.start(peer.outer.params, 0, None)
    await _run_rounds(run, peer, life, parts, 0)


SimulatedJoin = JoinSequence[None, JoinedState, PeerParts]
"""The join sequence of a simulated peer. It has no stage for files, which a simulated machine has from the start."""


async def run_joiner(run: SimulatedRun, peer: SimulatedPeer, life: Life) -> None:
    """Run a peer that joins or comes back: fetch a state, journal the work lost with the former process as dropped,
    then train."""
    await life.directory.announce(describe(run, peer, life))
    context = JoinContext(
        run_id=RUN,
        me=peer.peer_id,
        directory=life.directory,
        transport=life.transport,
        clock=VirtualClock(),
        say=lambda text: None,
        rng=life.rng,
    )

    async def learn_terms(joining: SimulatedJoin) -> JoinTerms:
        await catch_up(context, life.statements, run.world.nodes, [PAPER])
        admission = OwnAdmission(life.invited, peer.peer_id, None)
        return JoinTerms(statements=life.statements, nodes=run.world.nodes, admission=admission)

    async def fetch_state(joining: SimulatedJoin) -> JoinedState:
        checkpoints, momentum = cast(CheckpointStore, peer.disk), run.setting.method.one_state
        terms = FetchTerms(momentum=momentum, weigh=peer.trainer.weigh, emit=lambda event: journal(peer, life, event))
        return await obtain_state(context, run.layout, checkpoints, terms)

    async def start_trainer(joining: SimulatedJoin) -> PeerParts:
        state = joining.state
        parts = build_parts(run, peer, life, state.outer, state.stale_reason)
        journal(peer, life, events.Started(peer_id=peer.peer_id, run_id=RUN.hex(), version="", resumed=state.why))
        if (transfer := state.transfer) is not None:
            fetched = events.StateFetched(
                donor=transfer.donor, round=state.round, bytes=transfer.nbytes, seconds=transfer.seconds
            )
            journal(peer, life, fetched)
        parts.supervisor.drop_outstanding("lost with the process that did it")
        await peer.trainer.start(state.outer.params, state.round, None)
        return parts

    joining = SimulatedJoin(terms=learn_terms, state=fetch_state, trainer=start_trainer)
    await joining.run(until=Stage.TRAINER)
    await _run_rounds(run, peer, life, joining.ready, joining.state.round)


def _records_of(run: SimulatedRun, parts: PeerParts) -> Callable[[], Mapping[PeerId, PeerRecord]]:
    """Return a function that returns the live records, plus the last known record of each operator's node, since one
    read of the directory shows only a part of a large swarm."""
    nodes = dict[PeerId, PeerRecord]()

    def known() -> Mapping[PeerId, PeerRecord]:
        records = parts.view.peers
        nodes.update({node: records[node] for node in run.relay_nodes if node in records})
        return {**nodes, **records}

    return known


async def _run_rounds(run: SimulatedRun, peer: SimulatedPeer, life: Life, parts: PeerParts, round_: int) -> None:
    """Run the rounds from `round_` on, with the peer's background tasks beside them."""
    # A look shows to which bucket of the directory the peer belongs. Announced before it, the founders of a large swarm
    # would all fill the first bucket.
    await parts.view.look()
    await parts.view.announce()
    duties = [*parts.background(), life.reach.run(parts.view.known, SETTLED_EVERY_S)]
    if life.reservations is not None:
        duties.append(life.reservations.run(_records_of(run, parts)))
    background = [asyncio.create_task(duty) for duty in duties]
    try:
        await parts.loop.run(round_)
    finally:
        for task in background:
            task.cancel()
        await asyncio.wait(background)
