"""The status of a peer, gathered from the parts as they are now, and the one line of it printed now and then."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from peer.join.contract import end_of
from peer.join.invitation import OwnAdmission
from peer.node.leaving.plan import LeavingPlan
from peer.observe.control_bytes import in_all
from peer.observe.formatting import loss_words
from peer.observe.progress import Waits
from peer.observe.status.codec import to_json
from peer.observe.status.notices import read_status
from peer.observe.status.value import DaemonStatus, Severity
from peer.observe.totals import Totals, ledger
from peer.protocol.messages import PeerRecord, Reach, Status
from peer.run.manifest import Manifest
from peer.run.papers.start import known_start

if TYPE_CHECKING:
    from peer.membership.reputation import Reputation
    from peer.node.assemble import PeerParts
    from peer.node.open import OpenNode
    from peer.trainer.client import TrainerClient


SHOWN_AMENDMENTS = 5
"""The last ones; the journal names all."""


@dataclass(slots=True)
class DaemonFacts:
    """What the daemon knows of itself beside its parts."""

    started_at: float
    phase: str = "starting"
    departure: LeavingPlan | None = None
    """Set once the daemon was told to leave."""
    manifest: Manifest | None = None
    waits: Waits = field(default_factory=lambda: Waits(time.monotonic))
    training: bool = False
    """The rounds have been begun."""
    admission: OwnAdmission | None = None
    contract: dict[str, Any] | None = None
    """The terms that the volunteer agreed to."""
    page: str = field(default="", init=False)
    """Address of the page for browsers."""

    def is_doing(self, phase: str) -> None:
        """Name what goes on, for a person."""
        self.phase = phase

    def learn(self, manifest: Manifest) -> None:
        """The run's manifest is known."""
        self.manifest = manifest

    def agree(self, contract: dict[str, Any]) -> None:
        """The volunteer agreed to these terms."""
        self.contract = contract

    def open_page(self, address: str) -> None:
        """The page for browsers is open there."""
        self.page = address

    def admit(self, admission: OwnAdmission) -> OwnAdmission:
        """The run lets this peer in; the same admission."""
        self.admission = admission
        return admission

    def train(self) -> None:
        """The rounds begin."""
        self.training = True

    @property
    def leaving(self) -> bool:
        return self.departure is not None

    def exchange_limit_s(self) -> float:
        """Return the seconds that a daemon which was told to leave gives the exchange under way."""
        assert self.departure is not None
        return self.departure.exchange_limit_s

    def leave(self, plan: LeavingPlan) -> LeavingPlan:
        """The daemon was told to leave; the same plan."""
        self.departure = plan
        return plan


def status_report(
    node: OpenNode,
    facts: DaemonFacts,
    parts: PeerParts | None,
    trainer: TrainerClient | None,
    totals: Totals,
    reputation: Reputation,
    own: dict[str, Any],
) -> DaemonStatus:
    """Return the status. Parts that are not there yet are None."""
    amendments = node.handler.parts.amendments
    report: dict[str, Any] = {
        "role": "peer",
        "peer_id": node.local.me,
        "run_id": node.local.run_id.hex(),
        "run": facts.manifest.name if facts.manifest else "",
        "status": Status.LEAVING.value if facts.leaving else Status.JOINING.value,
        "phase": facts.phase,
        "leaving": None if facts.departure is None else facts.departure.report(),
        "uptime_s": round(time.time() - facts.started_at, 1),
        "log": str(node.local.folder.log),
        "endpoints": list(node.endpoints()),
        "addresses": node.directory.addresses(),
        "reachable": {"value": node.reach.state.reachable(), "why": node.reach.state.why()},
        "port_mapping": node.mapping.report(),
        "relays": node.reservations.report(),
        "relaying": node.transport.desk.report(),
        "amendments": 0 if amendments is None else amendments.count,
        "amended": [] if amendments is None else amendments.latest(SHOWN_AMENDMENTS),
        "papers": None if node.handler.papers is None else node.handler.papers.report(node.local.clock.now()),
        "neighbours": node.directory.neighbours(),
        "directory": node.directory.report(),
        "clock_correction_s": node.local.clock.correction,
        "bytes_sent": node.transport.bytes_sent,
        "bytes_received": node.transport.bytes_received,
        "control_bytes": control_bytes(node),
        "line_bytes": asdict(node.line.read()),
        "caps": caps(node),
        "wait": to_json(facts.waits.report()),
        "page": facts.page,
    }
    if shared := node.key_watch.shared:
        report["key_shared"] = shared
    if facts.manifest is not None:
        report["parameters"] = facts.manifest.model.parameters
        report["total_rounds"] = facts.manifest.rounds
        report["about"] = about(facts.manifest)
        report["ends_at"] = ends_at(node, facts.manifest)
    if facts.contract is not None:
        report["contract"] = facts.contract
    if parts is not None and facts.training:
        report |= _of_the_rounds(node, facts, parts, totals)
    if parts is not None:
        report["membership"] = parts.view.watch.report()
        report["peers"] = _of_the_peers(node, parts)
    if trainer is not None and facts.manifest is not None and parts is not None and facts.training:
        report |= _of_the_trainer(trainer, parts.supervisor.elements, totals)
    if facts.admission is not None:
        report["admission"] = facts.admission.report() | reputation.strangeness()
    report |= reputation.report()
    return read_status(report | own)


def ends_at(node: OpenNode, manifest: Manifest) -> float | None:
    """When the run's last round is due, seconds since the epoch; None: not known."""
    papers = node.handler.papers
    return end_of(manifest, manifest.start if papers is None else known_start(manifest, papers.shelf, None))


def about(manifest: Manifest) -> dict[str, Any]:
    """What the manifest says of a run, for a person. `sync_every` in seconds or inner steps, as `clock` says."""
    sync = manifest.sync
    return {
        "model": manifest.model.kind,
        "data": manifest.data.kind,
        "preset": sync.preset,
        "clock": sync.clock,
        "sync_every": sync.sync_every,
    }


def _of_the_rounds(node: OpenNode, facts: DaemonFacts, parts: PeerParts, totals: Totals) -> dict[str, Any]:
    live, diagnosis = parts.live, parts.members.diagnosis
    report: dict[str, Any] = {
        "status": Status.LEAVING.value if facts.leaving else live.status.value,
        "phase": live.phase,
        "round": live.round,
        "next_due_in_s": None if live.due_at is None else round(live.due_at - node.local.clock.now(), 1),
        "last_partner": live.last_partner,
        "last_outcome": live.last_outcome,
        "last_seconds": round(live.last_seconds, 2),
        "rounds": dict(totals.rounds),
        "paths": dict(totals.paths),
        "diagnosis": diagnosis.report(),
        "exchanging": diagnosis.numbers(),
    }
    if (acceptance := parts.acceptance) is not None:
        report["partner_params"] = acceptance.report()
    if (receipts := parts.members.receipts) is not None:
        report["receipts"] = receipts.report()
    return report if parts.group is None else report | {"group": parts.group.report()}


def _of_the_peers(node: OpenNode, parts: PeerParts) -> list[dict[str, Any]]:
    """Return what is known of each peer, the proven ones first: lists that are cut show those."""
    proven = parts.members.reputation.proven
    return [
        {
            "peer_id": r.peer_id,
            "status": r.status.value,
            "round": r.round,
            "endpoints": list(r.endpoints),
            "reachable": r.reachable,
            "relays": [relay.peer_id for relay in r.relays],
            "path": _path_to(r, node),
            "pairs": _why_no_pair(r, node, parts),
        }
        for r in sorted(parts.view.peers.values(), key=lambda r: (r.peer_id not in proven, r.peer_id))
    ]


def caps(node: OpenNode) -> dict[str, float | None]:
    """Bytes per second; None: no cap."""
    options = node.local.options
    given = {"sent": options.max_upload, "received": options.max_download}
    return {name: None if cap is None else float(cap) for name, cap in given.items()}


def _path_to(record: PeerRecord, node: OpenNode) -> dict[str, str]:
    """Return the path of the open connection to a peer, and why it is that one. Empty texts: there is none."""
    way = node.transport.way_to(record)
    if way is None:
        return {"path": "", "via": "", "why": "no connection is open"}
    return {"path": way.path.value, "via": way.via, "why": way.why}


def control_bytes(node: OpenNode) -> dict[str, dict[str, int]]:
    """Bytes of control messages so far, in each direction and by purpose."""
    return in_all(node.transport.control, node.directory.control)


def _why_no_pair(record: PeerRecord, node: OpenNode, parts: PeerParts) -> str:
    """Why a peer is no candidate of ours; `yes` when it is one, and `last` when it is one that we ask behind all."""
    if record.status is not Status.TRAINING:
        return f"no: it is {record.status.value}"
    if parts.view.watch.out(record.peer_id):
        return "no: neither we nor others reach it"
    if not record.reach and not node.address().reach():
        return "no: neither of the two can be called"
    if left := parts.members.reputation.last_choices.rounds_left(record.peer_id, parts.live.round):
        return f"last: we refused its params twice running, and ask it behind all others for {left} rounds"
    if record.reach is Reach.DIRECT:
        return "yes"
    return "yes: over a relay" if record.reach is Reach.RELAYED else "yes: it dials"


def _of_the_trainer(trainer: TrainerClient, elements: tuple[int, ...], totals: Totals) -> dict[str, Any]:
    counters, progress = trainer.counters(), trainer.progress
    book = ledger(totals, counters.tokens, counters.base, elements)
    return {
        "steps": counters.steps,
        "tokens": counters.tokens,
        "loss": progress.loss if math.isfinite(progress.loss) else None,
        "tokens_per_s": progress.tokens_per_s,
        "trainer_waits": progress.waiting,
        "trainer_pid": trainer.pid,
        "seconds_training": counters.seconds_training,
        "seconds_waiting": counters.seconds_waiting,
        "ledger": {
            "processed": book.processed,
            "applied": book.applied,
            "dropped": book.dropped,
            "outstanding": book.outstanding,
        },
        "val_loss": totals.val_loss[-1] if totals.val_loss else None,
    }


def status_line(status: DaemonStatus) -> str:
    """One plain line for a terminal or a log. It repeats the serious notices alone."""
    parts = [f"{status.status}: {status.phase if status.leaving is None else status.leaving.told}"]
    if (progress := status.progress) is not None:
        due = progress.next_due_in_s
        parts.append(f"round {progress.round}" + (f" (due in {due:.0f} s)" if due is not None and due > 0 else ""))
    if (training := status.training) is not None:
        loss = "no loss yet" if training.loss is None else f"loss {loss_words(training.loss)}"
        parts.append(f"step {training.steps}, {loss}, {training.tokens_per_s:.0f} tokens/s")
        if training.val_loss is not None:
            round_, nats, _ = training.val_loss
            parts.append(f"hold-out {loss_words(nats)} (round {round_})")
    if status.peers is not None:
        parts.append(f"{sum(peer.status == 'training' for peer in status.peers)} other peers train")
    if progress is not None and progress.last_outcome:
        whom = progress.last_partner
        with_whom = f" with {whom if ' ' in whom else whom[-6:]}" if whom else ""
        parts.append(f"last round {progress.last_outcome}{with_whom}")
    if (membership := status.membership) is not None and membership.cut_off_s is None:
        counts = {"suspected": membership.suspected_count, "not answering anybody": membership.out_count}
        parts += [f"{count} {what}" for what, count in counts.items() if count]
    parts += [
        notice.brief or f"{notice.about}: {notice.sentence}"
        for notice in status.notices
        if notice.severity is Severity.SERIOUS and notice.sentence not in status.phase
    ]
    return " · ".join(parts)
