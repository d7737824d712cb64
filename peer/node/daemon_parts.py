"""The daemon's own parts, made before it joins a run, and the peer that is assembled around them afterwards."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial

from peer.aio.events import Signal
from peer.aio.threads import Offload
from peer.exchange.build import MakeStrategy, make_strategy
from peer.exchange.memory_file import MemoryFile
from peer.guest.watch import machine_watch
from peer.joining.clock import clock_from
from peer.joining.ended import operator_nodes
from peer.joining.fetch_terms import FetchTerms, RunKnowledge
from peer.joining.invitation import OwnAdmission, invited_peers, own_invitation
from peer.joining.reset import ResetStates
from peer.joining.resume import JoinedState
from peer.joining.statements import ask_for_start
from peer.membership.own_record import OwnRecord
from peer.membership.peer_table import pace
from peer.membership.proven_file import ProvenFile
from peer.membership.reputation import Reputation
from peer.membership.statement_sync import ASK_EVERY_S, StatementSync
from peer.membership.suspend import read_clocks
from peer.node.assemble import LocalPolicy, PeerOutlets, PeerParts, PeerSetting, PeerState, PeerTempo, assemble
from peer.node.handler import DonatedState
from peer.node.open import LocalNode, OpenNode, network_news, open_node
from peer.node.own_summary import SummarySource
from peer.node.upload_quota import UploadQuota
from peer.observe import events
from peer.observe.journal import Journal
from peer.observe.receipt_file import ReceiptFile
from peer.ports.memory_store import ExchangeStores
from peer.ports.peer import PeerPorts
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.model.layout import Layout
from peer.protocol.policy.amendments import RunPolicy
from peer.protocol.schedule import RoundClock
from peer.protocol.swarm.claimed_round import furthest_round
from peer.rounds.pause import LocalPause
from peer.rounds.status import RoundStatus
from peer.run.admission.invitation import InvitedPeers, day_of
from peer.run.manifest import Manifest
from peer.run.method import Method
from peer.run.options import JoinOptions
from peer.run.plan import RunPlan
from peer.run.presets import resolve
from peer.run.statements.files import known_start
from peer.run.statements.log import StatementLog
from peer.run.sync.common_data import why_unchecked
from peer.signed_record import seal
from peer.state.checkpoint import CheckpointStore, checkpoint_bytes
from peer.state.checkpointer import Checkpointer
from peer.state.save_pace import SavePace
from peer.trainer.client import TrainerClient
from peer.transport.config import RunTerms
from peer.transport.signing import KeySigner


@dataclass(frozen=True, slots=True, kw_only=True)
class PartMakers:
    """Builds the parts of a daemon that tell others something."""

    strategy: MakeStrategy = make_strategy
    """Builds the topology."""
    donated: Callable[..., DonatedState] = DonatedState
    """Builds what joiners are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonParts:
    """The parts of a daemon that are there before its network side is opened."""

    options: JoinOptions
    journal: Journal
    quota: UploadQuota
    pause: LocalPause
    reputation: Reputation
    live: RoundStatus
    record_changed: Signal
    """Rung when our record says something new that others should know soon."""
    make: PartMakers = PartMakers()

    @classmethod
    def of(cls, local: LocalNode, options: JoinOptions) -> DaemonParts:
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
        quota.rests.append(pause.why)
        return cls(
            options=options,
            journal=journal,
            quota=quota,
            pause=pause,
            reputation=Reputation(local.clock.now, journal.append, proven),
            live=RoundStatus(),
            record_changed=changed,
        )

    def open_node(self, local: LocalNode) -> AbstractAsyncContextManager[OpenNode]:
        """Open the network side, whose events are journaled and told to the person."""

        def emit(event: events.Event) -> None:
            self.journal.append(event)
            if news := network_news(event):
                local.say(news)

        return open_node(local, self.reputation, self.quota, emit, self.record_changed.set)

    def fetch_terms(self, node: OpenNode, manifest: Manifest, trainer: TrainerClient) -> FetchTerms:
        """Return what the state has to be that this volunteer begins with.

        A run that begins when a paper says so is in round 0 as long as nobody shows that paper."""
        statements, context = node.handler.statements, node.join_context()
        assert statements is not None
        log = statements.log

        def furthest() -> int | None:
            most = furthest_round(clock_from(manifest, start_of(node)), node.local.clock.now())
            return 0 if most is None and log.wants_start else most

        knows = RunKnowledge(
            proven=frozenset(self.reputation.proven),
            nodes=log.nodes(node.local.clock.now(), operator_nodes(manifest, self.options.initial_peers)),
            furthest=furthest,
            digests=lambda: log.digests(node.local.clock.now()),
            ask_start=partial(ask_for_start, context, statements),
        )
        return FetchTerms(
            momentum=resolve(manifest.sync).topology == "group",
            patience_s=self.options.wait_s,
            weigh=trainer.weigh,
            emit=self.journal.append,
            knows=knows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRun:
    """The things that a daemon has when it has joined a run."""

    manifest: Manifest
    statements: StatementSync
    invited: InvitedPeers
    rounds: RoundClock
    state: JoinedState
    checkpoints: CheckpointStore
    trainer: TrainerClient
    founded: bytes
    """Digest of the restart that the state descends from, as `peer.joining.reset.founding_of` returns it."""


def pace_of(method: Method) -> float:
    """Seconds between two looks at the directory in this run."""
    return pace(method.round_length if method.clock == "seconds" else None)


def statements_of(
    node: OpenNode, manifest: Manifest, emit: Callable[[events.Event], None], round_now: Callable[[], int]
) -> StatementSync:
    """Read the statements that were kept, and hand them on from here on. `round_now`: returns the round under way here;
    0: not known."""
    local = node.local
    log = StatementLog.of(local.run_id, manifest, local.clock.now)
    node.handler.hand_on(held := StatementSync(log, emit, local.folder.path, round_now))
    return held


def start_of(node: OpenNode) -> float:
    """Return when round 0 began, as far as it was signed; 0: not known yet."""
    assert node.handler.statements is not None
    return known_start(node.handler.statements.log, node.local.folder.path)


def admission_of(local: LocalNode, manifest: Manifest, options: JoinOptions, log: StatementLog) -> OwnAdmission:
    """Return the rule by which others are let in, and what we show ourselves.

    Raises JoinRefused when this run admits invited peers only and this one is not."""
    nodes, now = operator_nodes(manifest, options.initial_peers), local.clock.now
    invited = invited_peers(manifest, log, now, nodes)
    own = own_invitation(local.folder.path, None, local.run_id, local.me, now())
    admission = OwnAdmission(invited, local.me, own)
    admission.ensure()
    if invited.required and own is not None:
        local.say(f"invited until {day_of(own.expires)}: this peer leaves then")
    return admission


def begin_run(
    node: OpenNode,
    manifest: Manifest,
    layout: Layout,
    ruling: Callable[[], RunPolicy],
    invited: InvitedPeers,
    record: Callable[[], PeerRecord],
) -> None:
    """Tell the network side the terms of the run. `ruling`: the operator's word for the round at hand. `record` makes
    our record."""
    limits, method = manifest.limits, resolve(manifest.sync)
    if method.topology == "group":
        node.directory.read_everybody()
    terms = RunTerms(
        layout.digest(),
        limits.max_fragment_bytes,
        method.codec,
        limits.max_clock_offset_s,
        record=lambda: seal(record(), node.local.identity),
        why_banned=lambda peer: ruling().kept_out.get(peer, ""),
        why_uninvited=invited.why_not,
    )
    node.transport.begin_run(terms)


def assemble_daemon(
    node: OpenNode, parts: DaemonParts, joined: JoinedRun, record: Callable[[], PeerRecord], bulk: Offload
) -> tuple[PeerParts, Checkpointer]:
    """Assemble the peer of a daemon that has joined a run, and what writes its checkpoints. `record` makes our record;
    `bulk` runs codec and outer step."""
    local, emit, state = node.local, parts.journal.append, joined.state
    node.directory.believe(nodes := _operators(joined, parts, local.clock.now))
    method = resolve(joined.manifest.sync)
    look_every_s = pace_of(method)
    saving = _checkpointer(local, parts, joined, lambda: built.directives.founded)
    built = assemble(
        PeerSetting(
            plan=_plan(local, parts.options, joined.manifest, method),
            rounds=joined.rounds,
            live=parts.live,
            own=OwnRecord(record, record, parts.record_changed, node.reservations.rate),
            tempo=PeerTempo(
                look_every_s=look_every_s,
                ask_every_s=max(ASK_EVERY_S, look_every_s / 2),
                rng=random.Random(),
                doze=local.clock.sleep,
                read_clocks=read_clocks,
            ),
            make=parts.make.strategy,
        ),
        PeerPorts(
            clock=local.clock,
            directory=node.directory,
            transport=node.transport,
            trainer=joined.trainer,
            signer=KeySigner(local.identity),
            offload=bulk,
        ),
        PeerState(
            outer=state.outer,
            receipts=ReceiptFile(local.folder.receipts),
            upto=dict(parts.journal.totals.upto),
            founded=joined.founded,
            stores=ExchangeStores(
                quorums=MemoryFile(local.folder.path / "group.json", "the group's rosters", emit),
                partners=MemoryFile(local.folder.path / "partners.json", "the distances of partners", emit),
            ),
        ),
        LocalPolicy(
            pause=parts.pause,
            quota=parts.quota,
            reputation=parts.reputation,
            statements=joined.statements,
            invited=joined.invited,
        ),
        PeerOutlets(
            emit=emit,
            fetch_reset=ResetStates(state.outer.layout, node.transport, bulk).fetch,
            on_boundary=saving.save_if_due,
            on_rest=saving.save_now,
        ),
    )
    return (_with_summaries(node, parts, joined, built, nodes) if parts.options.summary else built), saving


def _operators(joined: JoinedRun, parts: DaemonParts, now: Callable[[], float]) -> Callable[[], frozenset[PeerId]]:
    """Return what finds the operator's nodes."""
    named = operator_nodes(joined.manifest, parts.options.initial_peers)
    return lambda: joined.statements.log.nodes(now(), named)


def _with_summaries(
    node: OpenNode,
    parts: DaemonParts,
    joined: JoinedRun,
    built: PeerParts,
    nodes: Callable[[], frozenset[PeerId]],
) -> PeerParts:
    """Have the peer tell the run's nodes what it does."""
    trainer = joined.trainer
    source = SummarySource(
        node,
        trainer,
        progress=lambda: trainer.progress,
        totals=lambda: parts.journal.totals,
        round_=lambda: parts.live.round,
        status=lambda: parts.live.announced(parts.quota.why_not()),
    )
    parts.journal.listeners.append(source.hear)
    sender = source.sender(built.members.receipts, nodes)
    return replace(built, background=lambda: [*built.background(), sender.run()])


def _plan(local: LocalNode, options: JoinOptions, manifest: Manifest, method: Method) -> RunPlan:
    return RunPlan(
        run_id=local.run_id,
        me=local.me,
        method=method,
        total_rounds=manifest.rounds,
        eval_every=manifest.train.eval_every,
        max_upload=options.max_upload,
        min_peers=options.min_peers,
        unchecked=why_unchecked(method, manifest.data),
        scratch=local.folder.path,
        nodes=operator_nodes(manifest, options.initial_peers),
    )


def _checkpointer(
    local: LocalNode, parts: DaemonParts, joined: JoinedRun, founded: Callable[[], bytes]
) -> Checkpointer:
    trainer, nbytes = joined.trainer, checkpoint_bytes(joined.state.outer.layout.elements)
    return Checkpointer(
        joined.checkpoints,
        local.run_id,
        joined.state.outer,
        trainer,
        asyncio.to_thread,  # not the exchanges' own thread, and not at its low priority: training waits for a part
        parts.journal.append,
        SavePace(nbytes, parts.options.checkpoint_every_s, lambda: trainer.progress.longest_s),
        lambda: {"peer_id": local.me, "founded": founded().hex()},
    )
