"""The account on a run's public page, made of what the operator's node knows of the run. Lists are bounded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from peer import __version__
from peer.node.page import PageSource
from peer.observe.status.codec import to_json
from peer.web.bounds import bounded
from peer.web.curve import thinned

SHOWN_PEERS = 200
SHOWN_AMENDMENTS = 50


class PublicAccount:
    """Call it for the account as it is now. `wall`: seconds since the epoch."""

    def __init__(self, source: PageSource, wall: Callable[[], float] = time.time) -> None:
        self._source = source
        self._wall = wall

    def __call__(self) -> Mapping[str, Any]:
        """Return the parts by name."""
        status = self._source.report()
        view, kept = status.view or {}, status.kept
        join = view.get("join") or {}
        parts = {
            "run": {**(view.get("run") or {}), "round": view.get("round"), "version": __version__},
            "totals": view.get("totals"),
            "peers": [self._peer(one) for one in (view.get("peers") or [])[:SHOWN_PEERS]],
            "curve": thinned(view.get("loss") or []),
            "amendments": (view.get("amendments") or [])[-SHOWN_AMENDMENTS:],
            "dropped": view.get("dropped"),
            "model": {"state": None, "why": "", "ended": False} if kept is None else to_json(kept),
        }
        ticket = str(join.get("ticket", ""))  # ours, and its own length is bounded
        return {name: bounded(part) for name, part in parts.items()} | {"join": {"ticket": ticket}}

    def _peer(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Tell when a peer was heard of as a time: it stays the same while nothing is heard."""
        seen = told.get("seen_s_ago")
        kept = {name: value for name, value in told.items() if name != "seen_s_ago"}
        return kept | {"seen": None if seen is None else round(self._wall() - seen)}
