"""The account on a volunteer's page, made of what `peer status` tells and of the journal's events.

It names no address, path or process of anybody. Lists are bounded."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from peer import __version__
from peer.node.page import PageSource
from peer.observe.events import Event, RoundEnded
from peer.web.bounds import bounded
from peer.web.curve import ThinnedCurve, thinned

SHOWN_EXCHANGES = 20
SHOWN_PARTNERS = 100
SHOWN_FINDINGS = 20


class VolunteerAccount:
    """Call it for the account as it is now. `wall`: seconds since the epoch."""

    def __init__(self, source: PageSource, wall: Callable[[], float] = time.time) -> None:
        self._source = source
        self._wall = wall
        self._rounds: deque[dict[str, Any]] = deque(maxlen=SHOWN_EXCHANGES)
        self._curve = ThinnedCurve()
        source.listen(self.hear)

    def hear(self, event: Event, t: float) -> None:
        """Keep the last rounds, as a listener of the journal."""
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
        """Return the parts by name."""
        report = self._source.report()
        self._curve.add(report.get("round", -1.0), report.get("loss") if "round" in report else None)
        parts = {
            "peer": self._peer(report),
            "work": self._work(report),
            "bytes": _bytes(report),
            "partners": _partners(report),
            "rounds": list(reversed(self._rounds)),
            "findings": _findings(report),
            "curve": self._curves(),
        }
        return {name: bounded(part) for name, part in parts.items()}

    def _peer(self, report: Mapping[str, Any]) -> dict[str, Any]:
        leaving, wait = report.get("leaving"), report.get("wait")
        return {
            "run": report.get("run", ""),
            "run_id": report["run_id"],
            "peer_id": report["peer_id"],
            "version": __version__,
            "status": report["status"],
            "phase": report["phase"],
            "wait": None if wait is None else {key: wait[key] for key in ("name", "done", "total", "unit")},
            "leaving": None if leaving is None else leaving.get("told", ""),
            "paused": report.get("paused"),
            "reachable": (report.get("reachable") or {}).get("value"),
            "started": round(self._wall() - report["uptime_s"]),
            "acts": self._source.act is not None,
        }

    def _work(self, report: Mapping[str, Any]) -> dict[str, Any]:
        due = report.get("next_due_in_s")
        names = ("round", "total_rounds", "parameters", "steps", "tokens", "tokens_per_s", "loss", "rounds", "val_loss")
        work = {name: report.get(name) for name in names}
        work["due"] = None if due is None else round(self._wall() + due)
        return work

    def _curves(self) -> dict[str, Any]:
        measured = [(float(round_), loss) for round_, loss, *_ in self._source.evaluations()]
        return {"training": self._curve.points, "validation": thinned(measured)}


def _bytes(report: Mapping[str, Any]) -> dict[str, Any]:
    control = report.get("control_bytes") or {"sent": {}, "received": {}}
    return {
        "sent": report.get("bytes_sent"),
        "received": report.get("bytes_received"),
        "control_sent": sum(control["sent"].values()),
        "control_received": sum(control["received"].values()),
        "line": report.get("line_bytes"),
        "caps": report.get("caps"),
        "budget": report.get("budget"),
    }


def _partners(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    shown = sorted(report.get("peers", ()), key=lambda one: one["status"] != "training")  # the proven ones stay first
    return [
        {name: one[name] for name in ("peer_id", "status", "round", "pairs")} | {"path": one["path"]["path"]}
        for one in shown[:SHOWN_PARTNERS]
    ]


def _findings(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """What is amiss or worth knowing, the diagnosis first."""
    found = [
        {"what": str(one["what"]), "who": str(one["who"]), "why": str(one["why"])}
        for one in report.get("diagnosis", ())
    ]
    found += [{"what": "machine", "who": "", "why": str(why)} for why in report.get("machine", {}).get("unfit", ())]
    membership, directory = report.get("membership") or {}, report.get("directory") or {}
    if (seconds := membership.get("cut_off_s")) is not None:
        told = f"nobody answers for {seconds:.0f} s: is this machine's connection down?"
        found.append({"what": "connection", "who": "", "why": told})
    if directory.get("why"):
        found.append({"what": "directory", "who": "", "why": str(directory["why"])})
    if why := (report.get("budget") or {}).get("why"):
        found.append({"what": "budget", "who": "", "why": str(why)})
    if lacking := (report.get("group") or {}).get("lacking"):
        found.append({"what": "group", "who": "", "why": f"no outer step: {lacking}; the work stays"})
    return found[:SHOWN_FINDINGS]
