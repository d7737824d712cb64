"""Makes the status of a daemon from the present state of its parts."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from peer.joining.contract import run_end
from peer.joining.sequence import Stage
from peer.node.leaving.plan import LeavingPlan
from peer.observe.control_bytes import sum_control_bytes
from peer.observe.progress import Waits
from peer.observe.status.notices import with_notices
from peer.observe.status.value import (
    CapsStatus,
    DaemonStatus,
    KnownFact,
    ManifestStatus,
    PathStatus,
    PeerStatus,
    RoundsStatus,
    RunAbout,
    TrainingStatus,
)
from peer.observe.totals import Totals, ledger
from peer.protocol.messages import PeerRecord, Reach, Status
from peer.run.manifest import Manifest
from peer.run.statements.files import known_start

if TYPE_CHECKING:
    from peer.joining.report import JoinReport
    from peer.joining.sequence import JoinSequence
    from peer.membership.statement_sync import StatementSync
    from peer.node.compose import DaemonParts, DaemonPeer, PeerParts
    from peer.node.open import OpenNode
    from peer.trainer.client import TrainerClient


SHOWN_AMENDMENTS = 5
"""Number of the latest amendments that the status shows. The journal has all."""


@dataclass(slots=True)
class DaemonFacts:
    """Facts about a daemon that no other part holds: its phase, its waits, and whether it trains or leaves."""

    started_at: float
    phase: str = "starting"
    leaving_plan: LeavingPlan | None = None
    """Set once the daemon leaves."""
    waits: Waits = field(default_factory=lambda: Waits(time.monotonic))
    training: bool = False
    """Whether the rounds have begun."""
    page: str = field(default="", init=False)
    """Address of the page for browsers. Empty: it is not open."""

    def set_phase(self, phase: str) -> None:
        """Set the present activity, as shown to a person."""
        self.phase = phase

    def set_page(self, address: str) -> None:
        """Set the address of the page for browsers."""
        self.page = address

    def set_training(self) -> None:
        """Record that the rounds have begun."""
        self.training = True

    @property
    def leaving(self) -> bool:
        return self.leaving_plan is not None

    def exchange_limit_s(self) -> float:
        """Return the seconds for which a leaving daemon waits for the exchange under way."""
        assert self.leaving_plan is not None
        return self.leaving_plan.exchange_limit_s

    def leave(self, plan: LeavingPlan) -> LeavingPlan:
        """Store the plan of leaving, and return it."""
        self.leaving_plan = plan
        return plan


def status_report(
    node: OpenNode,
    facts: DaemonFacts,
    daemon_parts: DaemonParts,
    joining: JoinSequence[Any, Any, Any],
    join_report: JoinReport,
    peer: DaemonPeer | None,
    trainer: TrainerClient | None,
) -> DaemonStatus:
    """Return the status of a volunteer's daemon. `daemon_parts`: the parts that exist from the start on. `peer` and
    `trainer` are None until they exist. `joining`: has the finished stages of the join."""
    manifest = joining.manifest if joining.has(Stage.MANIFEST) else None
    terms = joining.terms if joining.has(Stage.TERMS) else None
    statements, totals = None if terms is None else terms.statements, daemon_parts.journal.totals
    parts = None if peer is None else peer.parts
    status = replace(
        node_status(node, statements, facts.started_at, "peer"),
        run="" if manifest is None else manifest.name,
        status=Status.LEAVING.value if facts.leaving else Status.JOINING.value,
        phase=facts.phase,
        leaving=None if facts.leaving_plan is None else facts.leaving_plan.report(),
        wait=facts.waits.report(),
        page=facts.page,
        manifest=None if manifest is None else manifest_status(statements, manifest, manifest.model.parameters),
        contract=joining.contract if joining.has(Stage.CONTRACT) else None,
        membership=None if parts is None else parts.view.detector.report(),
        peers=None if parts is None else _peers(node, parts),
        admission=None if terms is None else terms.admission.report(*daemon_parts.reputation.strangers()),
        reputation=daemon_parts.reputation.report(),
        paused=daemon_parts.pause.report(),
        machine=join_report.report(),
        budget=daemon_parts.quota.report(),
    )
    if parts is not None and facts.training:
        status = replace(
            status,
            status=status.status if facts.leaving else parts.round_status.status.value,
            phase=parts.round_status.phase,
            progress=_progress(node, parts, totals),
        )
        if trainer is not None and manifest is not None:
            status = replace(status, training=_training(trainer, parts.supervisor.elements, totals))
    return with_notices(status)


def node_status(node: OpenNode, statements: StatementSync | None, began: float, role: str) -> DaemonStatus:
    """Return the part of the status that every daemon has: its node, addresses and traffic. All other fields are empty.
    `began`: start of the process, seconds since the epoch."""
    local = node.local
    sent, received = local.options.max_upload, local.options.max_download
    return DaemonStatus(
        role=role,
        run="",
        status="",
        phase="",
        leaving=None,
        wait=None,
        page="",
        peer_id=local.me,
        run_id=local.run_id.hex(),
        uptime_s=round(time.time() - began, 1),
        log=str(local.folder.log),
        endpoints=tuple(node.endpoints()),
        addresses=tuple(node.directory.addresses()),
        reachable=KnownFact(node.reach.reachability.reachable(), node.reach.reachability.why()),
        port_mapping=node.mapping.report(),
        relays=node.reservations.report(),
        relaying=node.transport.relay_server.report(),
        amendments=0 if statements is None else len(statements.log.chain),
        amended=() if statements is None else tuple(statements.latest(SHOWN_AMENDMENTS)),
        papers=None if statements is None else statements.report(local.clock.now()),
        neighbours=node.directory.neighbours(),
        directory=node.directory.report(),
        clock_correction_s=local.clock.correction,
        bytes_sent=node.transport.bytes_sent,
        bytes_received=node.transport.bytes_received,
        control_bytes=sum_control_bytes(node.transport.control, node.directory.control),
        line_bytes=node.line.read(),
        caps=CapsStatus(None if sent is None else float(sent), None if received is None else float(received)),
        key_shared=node.key_watch.shared or None,
    )


def manifest_status(statements: StatementSync | None, manifest: Manifest, parameters: int) -> ManifestStatus:
    """Return the facts of a run that its manifest gives."""
    sync = manifest.sync
    start = manifest.start if statements is None else known_start(statements.log, None)
    about = RunAbout(manifest.model.kind, manifest.data.kind, sync.preset, sync.clock, sync.sync_every)
    return ManifestStatus(parameters, manifest.rounds, about, run_end(manifest, start))


def _progress(node: OpenNode, parts: PeerParts, totals: Totals) -> RoundsStatus:
    live, diagnosis, receipts = parts.round_status, parts.members.slow_peers, parts.members.receipts
    return RoundsStatus(
        round=live.round,
        next_due_in_s=None if live.due_at is None else round(live.due_at - node.local.clock.now(), 1),
        last_partner=live.last_partner,
        last_outcome=live.last_outcome,
        last_seconds=round(live.last_seconds, 2),
        rounds=dict(totals.rounds),
        paths=dict(totals.paths),
        diagnosis=diagnosis.report(),
        exchanging=diagnosis.numbers(),
        partner_params=None if parts.acceptance is None else parts.acceptance.report(),
        receipts=None if receipts is None else receipts.report(),
        group=None if parts.group is None else parts.group.report(),
    )


def _peers(node: OpenNode, parts: PeerParts) -> tuple[PeerStatus, ...]:
    """Return the known facts about each peer. Proven peers come first, so that a truncated list shows them."""
    proven = parts.members.reputation.proven
    return tuple(
        PeerStatus(
            peer_id=r.peer_id,
            status=r.status.value,
            round=r.round,
            endpoints=tuple(r.endpoints),
            reachable=r.reachable,
            relays=tuple(relay.peer_id for relay in r.relays),
            path=_path_to(r, node),
            pairs=_why_no_pair(r, node, parts),
        )
        for r in sorted(parts.view.peers.values(), key=lambda r: (r.peer_id not in proven, r.peer_id))
    )


def _path_to(record: PeerRecord, node: OpenNode) -> PathStatus:
    way = node.transport.way_to(record)
    return PathStatus("", "", "no connection is open") if way is None else PathStatus(way.path.value, way.via, way.why)


def _why_no_pair(record: PeerRecord, node: OpenNode, parts: PeerParts) -> str:
    """Return why a peer is no candidate for a pair. `yes`: it is one. `last…`: it is asked after all others."""
    if record.status is not Status.TRAINING:
        return f"no: it is {record.status.value}"
    if parts.view.detector.out(record.peer_id):
        return "no: neither we nor others reach it"
    if not record.reach and not node.address().reach():
        return "no: neither of the two can be called"
    if left := parts.members.reputation.last_choices.rounds_left(record.peer_id, parts.round_status.round):
        return f"last: we refused its params twice running, and ask it behind all others for {left} rounds"
    if record.reach is Reach.DIRECT:
        return "yes"
    return "yes: over a relay" if record.reach is Reach.RELAYED else "yes: it dials"


def _training(trainer: TrainerClient, elements: tuple[int, ...], totals: Totals) -> TrainingStatus:
    counters, progress = trainer.counters(), trainer.progress
    return TrainingStatus(
        steps=counters.steps,
        tokens=counters.tokens,
        loss=progress.loss if math.isfinite(progress.loss) else None,
        tokens_per_s=progress.tokens_per_s,
        trainer_waits=progress.waiting,
        trainer_pid=trainer.pid,
        seconds_training=counters.seconds_training,
        seconds_waiting=counters.seconds_waiting,
        ledger=ledger(totals, counters.tokens, counters.base, elements),
        val_loss=totals.val_loss[-1] if totals.val_loss else None,
        logged=trainer.logged or None,
    )
