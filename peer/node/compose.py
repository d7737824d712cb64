"""The composition root: every peer is put together here, in one place and once.

`compose_peer` connects one peer's parts around its ports. The daemon, the simulator and the tests all build their peers
with it, so that they differ in their ports alone. `DaemonParts` are the parts that a daemon has from its start on, and
`compose_daemon` builds its peer when it has joined a run. Parts are complete when they are made. What the daemon learns
later reaches them by calls: the limit on strangers, nodes of the operator, listeners of the journal, and the services
that it registers. `RoundStatus` is made before all others, because the ban list and the peer's own record depend on the
round at hand."""

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
from peer.protocol.swarm.suspend_detection import Reading, Slept
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
"""Gets the state with this digest from one of these peers; None: nobody gives it yet."""


class Quota(Protocol):
    """The volunteer's upload quota, as the rounds ask for it."""

    def blocked_reason(self) -> str:
        """Why a round cannot be exchanged now, for a person; empty: it can."""

    async def watch(self) -> None:
        """Notice new days and quotas that are used; for ever, the owner cancels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerParts:
    """One peer's connected parts."""

    loop: RoundLoop
    members: MembershipParts
    matchmaker: Matchmaker
    strategy: ExchangeStrategy
    supervisor: TrainerSupervisor
    directives: Directives
    background: Callable[[], list[Coroutine[Any, Any, None]]]
    """Makes the duties that run for ever beside the rounds; the owner cancels."""

    @property
    def view(self) -> PeerTable:
        return self.members.peer_table

    @property
    def round_status(self) -> RoundStatus:
        return self.loop.round_status

    @property
    def acceptance(self) -> PartnerAcceptance | None:
        """Our judge of partners' params; None in other topologies than pairs."""
        return self.strategy.acceptance if isinstance(self.strategy, PairStrategy) else None

    @property
    def group(self) -> GroupMember | None:
        """Our part in a group, which answers the others; None in other topologies."""
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
    clocks: Callable[[], Reading] | None,
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
    """Connect a peer's parts around a complete state. Nothing runs yet: the owner runs `loop` and `background`.

    `invited`: the peers that have an invitation, as far as they showed it. `look_every_s`: seconds between two looks at
    the directory (`peer.membership.peer_table.pace`); `ask_every_s`: between two questions for amendments. `doze` waits
    between two looks at suspected peers. `clocks` reads the clocks that show a sleep of this machine; None: it never
    sleeps, and nothing looks for that. `on_boundary` is called between rounds with the number of the next one,
    `on_rest` when everything stands still for a pause. `receipts` keeps the receipts of swaps; None: none are
    exchanged. `upto`: by fragment, the trainer's token count that earlier events of the journal already cover.
    `founded`: digest of the state that `outer` goes back to, if the operator had refounded the run. `make` builds the
    exchange."""
    clock, transport, trainer, leaving = ports.clock, ports.transport, ports.trainer, Shutdown()
    log, proven = statements.log, reputation.proven

    # Who else is there.
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

    # What is due when, and what the operator and the volunteer say to it.
    schedule = RoundSchedule(rounds, clock, view, emit, live, proven, log.awaited_start)
    waits = rounds.kind == "seconds" and plan.method.waits  # only then can strangers hold rounds up
    budget = StrangerBudget(rounds.round_length if waits else None, detector.trips.usual)
    reputation.limit_strangers(budget, invited)

    async def reset(digest: bytes) -> Tensor | None:
        return await fetch_reset(digest, list(view.peers.values()))

    directives = Directives(log.policy, founded, reset, pause)

    # With whom, and what is exchanged.
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
                # a payload takes as long as the last one, as far as is known
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
            """Nothing ran here for a while. No work was done in the time that the machine slept through."""
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
    """Return at once."""


# -- the daemon ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonParts:
    """The parts of a daemon that are there before its network side is opened."""

    options: PeerOptions
    journal: Journal
    quota: UploadQuota
    pause: LocalPause
    reputation: Reputation
    round_status: RoundStatus
    record_changed: Signal
    """Rung when our record says something new that others should know soon."""
    make_strategy: MakeStrategy = make_strategy
    """Builds the exchange."""
    make_donated: Callable[..., DonatedState] = DonatedState
    """Builds what joiners are given."""

    @classmethod
    def of(cls, local: LocalNode, options: PeerOptions) -> DaemonParts:
        """Open journal, quota and pause. Raises HomeUnusable."""
        local.say(f"all is loaded: this peer is {local.me}, and opens the network")
        journal, changed = Journal(local.folder.journal, local.clock.now), Signal()
        proven = ProvenFile(local.folder.path / "proven.json", journal.append)
        uploads = local.home.path / "uploads.json"  # of the machine's line, whatever the run
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
        """Open the network side, whose events are journaled and printed."""

        def emit(event: events.Event) -> None:
            self.journal.append(event)
            if news := network_news(event):
                local.say(news)

        return open_node(local, self.reputation, self.quota, emit, self.record_changed.set)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """A run whose files are on this machine: what a daemon fetches the state for."""

    layout: Layout
    checkpoints: CheckpointStore
    trainer: TrainerClient
    """It has its data, and waits for the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonPeer:
    """The peer of a daemon that has joined a run."""

    parts: PeerParts
    checkpointer: Checkpointer
    """Writes its checkpoints."""
    summaries: SummarySender | None
    """Sends summaries to the run's nodes. None: the volunteer wants none."""


def pace_of(method: Method) -> float:
    """Seconds between two looks at the directory in this run."""
    return pace(method.round_length if method.clock == "seconds" else None)


def begin_run(
    node: OpenNode,
    manifest: Manifest,
    layout: Layout,
    policy: Callable[[], RunPolicy],
    invited: InvitedPeers,
    record: Callable[[], PeerRecord],
) -> None:
    """Give the network side the terms of the run. `policy`: returns the operator's rules for the round at hand.
    `record` makes our record."""
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
    `record` makes our record; `bulk` runs codec and outer step."""
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
        asyncio.to_thread,  # not the exchanges' own thread, and not at its low priority: training waits for a part
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
