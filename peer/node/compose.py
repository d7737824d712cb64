"""The composition root: the one place where the parts of a peer are created and connected.

`compose_peer` connects one peer's parts around its ports. The daemon, the simulator and the tests all use it, so that
their peers differ only in the ports. A daemon has two more steps: `DaemonParts.of` creates the parts that exist before
the network side is opened, and `compose_daemon` calls `compose_peer` once the run has been joined.

Every part is complete when it is created. Facts that become known later are passed by calls: the budget for strangers,
the operator's nodes, listeners of the journal, and services of the request handler. `RoundStatus` is created before all
others because the ban list and the peer's own record depend on the current round."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from peer.aio.events import Shutdown, Signal
from peer.aio.threads import Offload
from peer.exchange.build import ExchangeContext, MakeStrategy, make_strategy
from peer.exchange.group.member import GroupMember
from peer.exchange.group.strategy import GroupStrategy
from peer.exchange.memory_file import MemoryFile
from peer.exchange.pair.acceptance import PartnerAcceptance
from peer.exchange.pair.context import PairContext, TrainerOutlook
from peer.exchange.pair.matchmaker import Matchmaker
from peer.exchange.pair.strategy import PairStrategy
from peer.exchange.strategy import ExchangeControls, ExchangeStrategy
from peer.guest.watch import machine_watch
from peer.joining.reset import ResetStates
from peer.joining.resume import JoinedState
from peer.joining.sequence import JoinTerms
from peer.membership.failure_detector import FailureDetector
from peer.membership.own_record import OwnRecord
from peer.membership.pair_receipts import PairReceipts
from peer.membership.parts import MembershipParts
from peer.membership.peer_table import PeerTable, lifetime, pace
from peer.membership.proven_file import ProvenFile
from peer.membership.receipt_log import ReceiptLog
from peer.membership.relay_words import RelayWords
from peer.membership.reputation import Reputation
from peer.membership.slow_peers import SlowPeerMonitor
from peer.membership.statement_sync import ASK_EVERY_S, StatementSync
from peer.membership.summary_sender import SummarySender
from peer.membership.suspend import SuspendRecovery, read_clocks, refresh
from peer.methods.method import Method
from peer.node.handler import DonatedState
from peer.node.open import LocalNode, OpenNode, network_news, open_node
from peer.node.own_summary import SummarySource
from peer.node.upload_quota import UploadQuota
from peer.observe import events
from peer.observe.journal import Journal
from peer.observe.receipt_file import ReceiptFile
from peer.outer.state import OuterState
from peer.ports.memory_store import ExchangeStores
from peer.ports.peer import PeerPorts
from peer.ports.receipt_store import ReceiptStore
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.model.layout import Layout
from peer.protocol.pair.stranger_budget import StrangerBudget
from peer.protocol.policy.amendments import RunPolicy
from peer.protocol.schedule import RoundClock
from peer.protocol.swarm.suspend_detection import ClockReading, Slept
from peer.rounds.commit import RoundCommitter
from peer.rounds.directives import Directives
from peer.rounds.loop import OnBoundary, RoundLoop, no_boundary
from peer.rounds.pause import LocalPause
from peer.rounds.schedule import RoundSchedule
from peer.rounds.status import RoundStatus
from peer.rounds.trainer_supervisor import TrainerSupervisor
from peer.run.admission.invitation import InvitedPeers
from peer.run.costs import receipt_bounds
from peer.run.manifest import Manifest
from peer.run.options import PeerOptions
from peer.run.plan import RunPlan
from peer.run.resolve import resolve
from peer.run.sync.common_data import unchecked_reason
from peer.signed_record import seal
from peer.state.checkpoint import CheckpointStore, checkpoint_bytes
from peer.state.checkpointer import Checkpointer
from peer.state.save_pace import SavePace
from peer.trainer.client import TrainerClient
from peer.transport.config import RunTerms
from peer.transport.signing import KeySigner

FetchReset = Callable[[bytes, list[PeerRecord]], Awaitable[Tensor | None]]
"""Fetches the state with this digest from one of these peers. Returns flat fp32 params, or None while no peer serves
that state."""


class Quota(Protocol):
    """The volunteer's upload quota, as far as the rounds use it."""

    def blocked_reason(self) -> str:
        """Return why no round can be exchanged now, for a person. Empty: exchanges are allowed."""

    async def watch(self) -> None:
        """Report new days and exhausted quotas as they occur. Runs until cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerParts:
    """The connected parts of one peer, as `compose_peer` returns them."""

    loop: RoundLoop
    members: MembershipParts
    matchmaker: Matchmaker
    strategy: ExchangeStrategy
    supervisor: TrainerSupervisor
    directives: Directives
    background: Callable[[], list[Coroutine[Any, Any, None]]]
    """Creates the coroutines that run beside the rounds. Each runs until the owner cancels it."""

    @property
    def view(self) -> PeerTable:
        return self.members.peer_table

    @property
    def round_status(self) -> RoundStatus:
        return self.loop.round_status

    @property
    def acceptance(self) -> PartnerAcceptance | None:
        """The check of partners' params. None: the topology is not `pair`."""
        return self.strategy.acceptance if isinstance(self.strategy, PairStrategy) else None

    @property
    def group(self) -> GroupMember | None:
        """This peer's member of a group, which answers the other members. None: the topology is not `group`."""
        return self.strategy.group if isinstance(self.strategy, GroupStrategy) else None


def compose_peer(
    *,
    plan: RunPlan,
    rounds: RoundClock,
    ports: PeerPorts,
    outer: OuterState,
    live: RoundStatus,
    own: OwnRecord,
    reputation: Reputation,
    pause: LocalPause,
    quota: Quota,
    statements: StatementSync,
    invited: Container[PeerId] = (),
    look_every_s: float,
    ask_every_s: float,
    rng: random.Random,
    doze: Callable[[float], Awaitable[None]],
    clocks: Callable[[], ClockReading] | None,
    emit: Callable[[events.Event], None],
    fetch_reset: FetchReset,
    on_boundary: OnBoundary = no_boundary,
    on_rest: OnBoundary = no_boundary,
    receipts: ReceiptStore | None = None,
    stores: ExchangeStores | None = None,
    upto: Mapping[int, int] | None = None,
    founded: bytes = b"",
    make: MakeStrategy = make_strategy,
) -> PeerParts:
    """Create a peer's parts around a complete state and connect them. Starts nothing: the owner runs `loop` and
    `background`.

    Arguments that are not named after their type: `invited`: peers whose invitation was verified. `look_every_s`:
    seconds between two reads of the directory (`peer.membership.peer_table.pace`). `ask_every_s`: seconds between two
    requests for statements. `doze`: sleeps between two probes of suspected peers. `clocks`: reads the clocks from which
    a suspend of this machine is detected. None: suspends are not detected. `on_boundary`: called between rounds with
    the number of the next round. `on_rest`: called when a pause has stopped all work. `receipts`: stores the receipts
    of swaps. None: no receipts are exchanged. `upto`: per fragment, the trainer's token count that earlier journal
    events cover. `founded`: digest of the restart that `outer` descends from. Empty: none. `make`: creates the exchange
    strategy."""
    clock, transport, trainer, leaving = ports.clock, ports.transport, ports.trainer, Shutdown()
    log, proven = statements.log, reputation.proven

    # Membership: the peers of the run, and what is known of each.
    detector = FailureDetector(clock.now, lifetime(look_every_s), look_every_s, emit)
    view = PeerTable(
        ports.directory,
        clock,
        rng,
        own,
        detector,
        look_every_s,
        banned=lambda: log.policy(live.round).kept_out,
        changed=lambda peers, reason: emit(events.DirectoryChanged(peers=peers, reason=reason)),
    )
    exchanged: PairReceipts | None = None
    if receipts is not None and plan.method.paired:  # only partners in pairs sign each other's receipts
        bounds = receipt_bounds(plan.method, outer.layout.elements, plan.total_rounds)
        kept = ReceiptLog(plan.run_id, plan.me, ports.signer, receipts, emit)
        exchanged = PairReceipts(kept, transport, lambda: view.peers, emit, proven, bounds)
    members = MembershipParts(view, reputation, SlowPeerMonitor(clock.now, emit), exchanged)

    # Schedule of the rounds, and the limits that the operator's amendments and the volunteer's pauses set.
    schedule = RoundSchedule(rounds, clock, view, emit, live, proven, log.awaited_start)
    waits = rounds.kind == "seconds" and plan.method.waits  # otherwise strangers cannot delay a round
    budget = StrangerBudget(rounds.round_length if waits else None, detector.trips.usual)
    reputation.limit_strangers(budget, invited)

    async def reset(digest: bytes) -> Tensor | None:
        return await fetch_reset(digest, list(view.peers.values()))

    directives = Directives(log.policy, founded, reset, pause)

    # Partners and the exchange with them.
    words = RelayWords(lambda: plan.nodes & log.nodes(clock.now(), plan.nodes), ports.signer.verify, members.reputation)
    matchmaker = Matchmaker(
        PairContext(
            plan.run_id,
            plan.me,
            transport,
            clock,
            view,
            reputation,
            TrainerOutlook(
                schedule.trainer_eta,
                schedule.all_ready_in,
                lambda: schedule.in_steps or trainer.counters().has_work,
            ),
            lambda record: words.block_of(record, view.peers, clock.now()),
        ),
        quota.blocked_reason,
    )
    strategy = make(
        ExchangeContext(
            plan=plan,
            outer=outer,
            ports=ports,
            members=members,
            matchmaker=matchmaker,
            stores=stores or ExchangeStores(),
            emit=emit,
            controls=ExchangeControls(
                wants_partners=lambda: not leaving and not pause.active.is_set(),
                no_exchange_reason=quota.blocked_reason,
                set_activity=live.set_phase,
                # the last transfer is the only estimate of the next one's duration
                exchange_fits=lambda ends_at: ends_at + live.last_seconds < clock.now() + pause.known_in(),
            ),
        )
    )

    # The rounds themselves.
    supervisor = TrainerSupervisor(trainer, outer, emit, leaving, upto or {})
    committer = RoundCommitter(trainer, outer, emit, ports.offload, supervisor, live, plan, strategy)
    recovery: SuspendRecovery | None = None
    if clocks is not None:

        def woke(slept: Slept) -> None:
            """Exclude the time for which this machine was suspended from the measured work time."""
            schedule.note_sleep(slept)
            for fragment, at in committer.based_at.items():
                committer.based_at[fragment] = at + slept.suspended_s

        async def fresh() -> None:
            await refresh(transport, clock, view, rng)

        recovery = SuspendRecovery(fresh, emit, woke, clocks)
    loop = RoundLoop(
        plan=plan,
        clock=clock,
        peer_table=view,
        outer=outer,
        schedule=schedule,
        directives=directives,
        trainer=trainer,
        supervisor=supervisor,
        strategy=strategy,
        committer=committer,
        slow_peers=members.slow_peers,
        round_status=live,
        shutdown=leaving,
        emit=emit,
        settled=_at_once if recovery is None else recovery.settled,
        on_boundary=on_boundary,
        on_pause=on_rest,
    )

    def background() -> list[Coroutine[Any, Any, None]]:
        async def dozing(seconds: float) -> None:
            await doze(seconds)

        return [
            view.run(),
            *statements.duties(transport, clock, rng, view.known, ask_every_s, detector.answered),
            detector.run(transport, lambda: view.peers, rng, dozing),
            pause.watch(),
            quota.watch(),
            *([] if exchanged is None else [exchanged.run()]),
            *([] if recovery is None else [recovery.run()]),
        ]

    return PeerParts(
        loop=loop,
        members=members,
        matchmaker=matchmaker,
        strategy=strategy,
        supervisor=supervisor,
        directives=directives,
        background=background,
    )


async def _at_once() -> None:
    """Return at once: without suspend detection there is nothing to wait for."""


# -- the daemon --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonParts:
    """The parts of a daemon that exist before its network side is opened."""

    options: PeerOptions
    journal: Journal
    quota: UploadQuota
    pause: LocalPause
    reputation: Reputation
    round_status: RoundStatus
    record_changed: Signal
    """Set when this peer's directory record changed in a way that others should see soon."""
    make_strategy: MakeStrategy = make_strategy
    """Creates the exchange strategy. Replaced by attack tests."""
    make_donated: Callable[..., DonatedState] = DonatedState
    """Creates the state that joiners are given. Replaced by attack tests."""

    @classmethod
    def of(cls, local: LocalNode, options: PeerOptions) -> DaemonParts:
        """Open journal, quota and pause of a run in the home. Raises HomeUnusable."""
        local.say(f"all is loaded: this peer is {local.me}, and opens the network")
        journal, changed = Journal(local.folder.journal, local.clock.now), Signal()
        proven = ProvenFile(local.folder.path / "proven.json", journal.append)
        uploads = local.home.path / "uploads.json"  # in the home: the quota is per line, not per run
        machine = machine_watch(options.guest, local.say)
        pause = LocalPause(local.folder.path / "paused.json", options.quiet_hours, machine=machine)
        if options.resume:
            pause.resume()
        quota = UploadQuota(options.uploads, uploads, journal.append, local.say, changed=changed.set)
        quota.rest_reasons.append(pause.reason)
        return cls(
            options=options,
            journal=journal,
            quota=quota,
            pause=pause,
            reputation=Reputation(local.clock.now, journal.append, proven),
            round_status=RoundStatus(),
            record_changed=changed,
        )

    def open_node(self, local: LocalNode) -> AbstractAsyncContextManager[OpenNode]:
        """Open the network side. Its events are journaled and printed."""

        def emit(event: events.Event) -> None:
            self.journal.append(event)
            if news := network_news(event):
                local.say(news)

        return open_node(local, self.reputation, self.quota, emit, self.record_changed.set)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """A run whose files are on this machine: the input to fetching a state."""

    layout: Layout
    checkpoints: CheckpointStore
    trainer: TrainerClient
    """It has loaded its data, and waits for a state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonPeer:
    """The composed peer of a daemon that has joined a run."""

    parts: PeerParts
    checkpointer: Checkpointer
    summaries: SummarySender | None
    """Sends summaries to the operator's nodes. None: the volunteer turned them off."""


def pace_of(method: Method) -> float:
    """Return the seconds between two reads of the directory in this run."""
    return pace(method.round_length if method.clock == "seconds" else None)


def begin_run(
    node: OpenNode,
    manifest: Manifest,
    layout: Layout,
    policy: Callable[[], RunPolicy],
    invited: InvitedPeers,
    record: Callable[[], PeerRecord],
) -> None:
    """Configure the network side for the run: layout, limits and admission. `policy`: returns the operator's policy for
    the current round. `record`: creates this peer's record."""
    limits, method = manifest.limits, resolve(manifest.sync)
    if method.one_state:
        node.directory.read_everybody()
    terms = RunTerms(
        layout.digest(),
        limits.max_fragment_bytes,
        method.codec,
        limits.max_clock_offset_s,
        record=lambda: seal(record(), node.local.identity),
        ban_reason=lambda peer: policy().kept_out.get(peer, ""),
        uninvited_reason=invited.refusal,
    )
    node.transport.begin_run(terms)


def compose_daemon(
    node: OpenNode,
    daemon_parts: DaemonParts,
    manifest: Manifest,
    terms: JoinTerms,
    run: LocalRun,
    state: JoinedState,
    rounds: RoundClock,
    *,
    founded: bytes,
    record: Callable[[], PeerRecord],
    bulk: Offload,
) -> DaemonPeer:
    """Compose the peer of a daemon that has joined a run.

    `founded`: digest of the restart that the state descends from, as `peer.joining.reset.founding_of` returns it.
    `record`: creates this peer's record. `bulk`: runs codec and outer step in a thread."""
    local, options, emit, trainer = node.local, daemon_parts.options, daemon_parts.journal.append, run.trainer
    method, clock = resolve(manifest.sync), local.clock

    def nodes() -> frozenset[PeerId]:
        return terms.statements.log.nodes(clock.now(), terms.nodes)

    node.directory.set_operators(nodes)
    look_every_s = pace_of(method)
    checkpointer = Checkpointer(
        run.checkpoints,
        local.run_id,
        state.outer,
        trainer,
        asyncio.to_thread,  # not the low-priority thread of the exchanges: training waits for a part of a checkpoint
        emit,
        SavePace(
            checkpoint_bytes(state.outer.layout.elements),
            options.checkpoint_every_s,
            lambda: trainer.progress.longest_s,
        ),
        lambda: {"peer_id": local.me, "founded": parts.directives.founded.hex()},
    )
    parts = compose_peer(
        plan=RunPlan(
            run_id=local.run_id,
            me=local.me,
            method=method,
            total_rounds=manifest.rounds,
            eval_every=manifest.train.eval_every,
            max_upload=options.max_upload,
            min_peers=options.min_peers,
            unchecked=unchecked_reason(method, manifest.data),
            scratch=local.folder.path,
            nodes=terms.nodes,
        ),
        rounds=rounds,
        ports=PeerPorts(
            clock=clock,
            directory=node.directory,
            transport=node.transport,
            trainer=trainer,
            signer=KeySigner(local.identity),
            offload=bulk,
        ),
        outer=state.outer,
        live=daemon_parts.round_status,
        own=OwnRecord(record, record, daemon_parts.record_changed, node.reservations.rate),
        reputation=daemon_parts.reputation,
        pause=daemon_parts.pause,
        quota=daemon_parts.quota,
        statements=terms.statements,
        invited=terms.admission.invited_peers,
        look_every_s=look_every_s,
        ask_every_s=max(ASK_EVERY_S, look_every_s / 2),
        rng=random.Random(),
        doze=clock.sleep,
        clocks=read_clocks,
        emit=emit,
        fetch_reset=ResetStates(state.outer.layout, node.transport, bulk).fetch,
        on_boundary=checkpointer.save_if_due,
        on_rest=checkpointer.save_now,
        receipts=ReceiptFile(local.folder.receipts),
        stores=ExchangeStores(
            quorums=MemoryFile(local.folder.path / "group.json", "the group's rosters", emit),
            partners=MemoryFile(local.folder.path / "partners.json", "the distances of partners", emit),
        ),
        upto=dict(daemon_parts.journal.totals.upto),
        founded=founded,
        make=daemon_parts.make_strategy,
    )
    summaries: SummarySender | None = None
    if options.summary:
        source = SummarySource(node, trainer, daemon_parts.journal, daemon_parts.round_status, daemon_parts.quota)
        daemon_parts.journal.listeners.append(source.on_event)
        summaries = source.sender(parts.members.receipts, nodes)
    return DaemonPeer(parts=parts, checkpointer=checkpointer, summaries=summaries)
