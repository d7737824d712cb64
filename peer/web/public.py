"""The account on a run's public page: the JSON data that the page shows, made from the view that the operator's node
has of the run. Lists are bounded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from peer import __version__
from peer.node.page import PageSource
from peer.observe.status.codec import to_json
from peer.protocol.summary.run_totals import PeerLine
from peer.web.bounds import bounded
from peer.web.curve import thinned

SHOWN_PEERS = 200
SHOWN_AMENDMENTS = 50


class PublicAccount:
    """Callable that returns the current account. `wall`: seconds since the epoch."""

    def __init__(self, source: PageSource, wall: Callable[[], float] = time.time) -> None:
        self._source = source
        self._wall = wall

    def __call__(self) -> Mapping[str, Any]:
        """Return the account: part name -> JSON-able value."""
        status = self._source.report()
        view, kept = status.view, status.kept
        parts: dict[str, Any] = {
            "run": {"round": None, "version": __version__},
            "totals": None,
            "peers": [],
            "curve": [],
            "amendments": [],
            "dropped": None,
            "model": {"state": None, "why": "", "ended": False} if kept is None else to_json(kept),
        }
        if view is not None:
            parts |= {
                "run": {**to_json(view.run), "round": view.round, "version": __version__},
                "totals": to_json(view.totals),
                "peers": [self._peer(one) for one in view.peers[:SHOWN_PEERS]],
                "curve": to_json(thinned(view.loss)),
                "amendments": to_json(view.amendments[-SHOWN_AMENDMENTS:]),
                "dropped": view.dropped,
            }
        ticket = "" if view is None else view.join.ticket  # not bounded below: it is our own and of limited length
        return {name: bounded(part) for name, part in parts.items()} | {"join": {"ticket": ticket}}

    def _peer(self, line: PeerLine) -> dict[str, Any]:
        """Return a peer's line, with the time of its last contact in place of the seconds since then. These would
        change at each rendering, so the line would be sent again each time."""
        told: dict[str, Any] = to_json(line)
        return told | {"seen": round(self._wall() - told.pop("seen_s_ago"))}
