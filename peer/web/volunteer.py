"""The account on a volunteer's page: the JSON data that the page shows, made from the daemon's status and journal
events.

It contains no network address, path or process id. Lists are bounded."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from peer import __version__
from peer.node.page import PageSource
from peer.observe.events import Event, RoundEnded
from peer.observe.formatting import participation
from peer.observe.progress import wait_line, worth_showing
from peer.observe.status.codec import to_json
from peer.observe.status.text import pause_rows
from peer.observe.status.value import DaemonStatus
from peer.web.bounds import bounded
from peer.web.curve import ThinnedCurve, thinned

SHOWN_EXCHANGES = 20
SHOWN_PARTNERS = 100
SHOWN_FINDINGS = 20


class VolunteerAccount:
    """Callable that returns the current account. `wall`: seconds since the epoch."""

    def __init__(self, source: PageSource, wall: Callable[[], float] = time.time) -> None:
        self._source = source
        self._wall = wall
        self._rounds: deque[dict[str, Any]] = deque(maxlen=SHOWN_EXCHANGES)
        self._curve = ThinnedCurve()
        source.listen(self.on_event)

    def on_event(self, event: Event, t: float) -> None:
        """Store a round that has ended. Called with each event of the journal."""
        if isinstance(event, RoundEnded):
            self._rounds.append(
                {
                    "t": round(t),
                    "round": event.round,
                    "outcome": str(event.outcome),
                    "partner": event.partner,
                    "why": event.reason,
                    "seconds": round(event.seconds, 2),
                    "bytes_sent": event.bytes_sent,
                    "bytes_received": event.bytes_received,
                    "path": event.path,
                }
            )

    def __call__(self) -> Mapping[str, Any]:
        """Return the account: part name -> JSON-able value."""
        status = self._source.report()
        progress, training = status.progress, status.training
        self._curve.add(-1.0 if progress is None else progress.round, None if training is None else training.loss)
        parts = {
            "peer": self._peer(status),
            "work": self._work(status),
            "bytes": _bytes(status),
            "partners": _partners(status),
            "rounds": list(reversed(self._rounds)),
            "findings": [to_json(notice) for notice in status.notices if not notice.local][:SHOWN_FINDINGS],
            "curve": self._curves(),
        }
        return {name: bounded(part) for name, part in parts.items()}

    def _peer(self, status: DaemonStatus) -> dict[str, Any]:
        return {
            "run": status.run,
            "run_id": status.run_id,
            "peer_id": status.peer_id,
            "version": __version__,
            "status": status.status,
            "phase": status.phase,
            "wait": wait_line(status.wait) if worth_showing(status.wait) else "",
            "leaving": None if status.leaving is None else status.leaving.told,
            "paused": to_json(status.paused),
            "conditions": []
            if status.paused is None
            else [f"{name}: {answer}" for name, answer in pause_rows(status.paused)],
            "reachable": status.reachable.value,
            "started": round(self._wall() - status.uptime_s),
            "acts": self._source.control is not None,
        }

    def _work(self, status: DaemonStatus) -> dict[str, Any]:
        manifest, progress, training = status.manifest, status.progress, status.training
        due = None if progress is None else progress.next_due_in_s
        return {
            "round": None if progress is None else progress.round,
            "total_rounds": None if manifest is None else manifest.total_rounds,
            "parameters": None if manifest is None else manifest.parameters,
            "steps": None if training is None else training.steps,
            "tokens": None if training is None else training.tokens,
            "tokens_per_s": None if training is None else training.tokens_per_s,
            "loss": None if training is None else training.loss,
            "rounds": None if progress is None else progress.rounds,
            "participation": "" if progress is None else participation(progress.rounds),
            "val_loss": None if training is None else training.val_loss,
            "logged": {} if training is None else dict(training.logged or {}),
            "due": None if due is None else round(self._wall() + due),
        }

    def _curves(self) -> dict[str, Any]:
        measured = [(float(round_), loss) for round_, loss, *_ in self._source.evaluations()]
        return {"training": self._curve.points, "validation": thinned(measured)}


def _bytes(status: DaemonStatus) -> dict[str, Any]:
    return {
        "sent": status.bytes_sent,
        "received": status.bytes_received,
        "control_sent": sum(status.control_bytes.sent.values()),
        "control_received": sum(status.control_bytes.received.values()),
        "line": to_json(status.line_bytes),
        "caps": to_json(status.caps),
        "budget": to_json(status.budget),
    }


def _partners(status: DaemonStatus) -> list[dict[str, Any]]:
    shown = sorted(status.peers or (), key=lambda peer: peer.status != "training")  # stable: proven peers stay first
    return [
        {
            "peer_id": peer.peer_id,
            "status": peer.status,
            "round": peer.round,
            "pairs": peer.pairs,
            "path": peer.path.path,
        }
        for peer in shown[:SHOWN_PARTNERS]
    ]
