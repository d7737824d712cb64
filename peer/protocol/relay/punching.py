"""Decides when hole punching is tried. Behind a router with which it never succeeds, a try on every connection would
cost two seconds each. The module is pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from peer.protocol.endpoints import host_of, port_of, version_of
from peer.protocol.messages import PeerId
from peer.protocol.swarm.nearness import is_private

FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 3600.0
"""Seconds without a try after a failure with a peer: at first, and at most. It doubles with each failure. There is an
upper limit because routers restart and peers move."""
LOST = 3
"""Number of consecutive peers with which punching failed, after which our own router is most likely the cause."""
OWN_PAUSE_S = 600.0
"""Seconds without any try in that case."""
MAX_PEERS = 256
LEAST_PORT = 1024


def implausible(seen: str, *, private_run: bool) -> str:
    """Return why an address that a relay reports cannot be that of the other end; empty: it can. `seen`: `host:port`.

    Connections come from ports of 1024 and above (RFC 6056). Lower ports belong to services, which must not be
    dialled."""
    if is_private(host_of(seen)) and not private_run:
        return "the relay tells a private address of the other end"
    if port_of(seen) < LEAST_PORT:
        return f"the relay tells a port of the other end that no connection comes from: {port_of(seen)}"
    return ""


@dataclass(slots=True)
class _Tries:
    failures: int = 0
    again_at: float = 0.0


class PunchMemory:
    """Results of our tries to punch. Times in seconds of any one clock."""

    def __init__(self) -> None:
        self._tries: OrderedDict[PeerId, _Tries] = OrderedDict()
        self._lost: set[PeerId] = set()
        """Peers with which punching failed since it last succeeded with any peer."""
        self._again_at = 0.0

    def skip_reason(self, peer: PeerId, seen: str, *, private_run: bool, now: float) -> str:
        """Return why punching is not tried now, for people to read; empty: it is tried. `seen`: address (`host:port`)
        of the other end, as the relay sees it."""
        if version_of(seen) == 0:
            return "the relay does not tell the other end's address"
        if why := implausible(seen, private_run=private_run):
            return why
        tries = self._tries.get(peer)
        if tries is not None and now < tries.again_at:
            return f"punching failed with this peer; it is tried again in {tries.again_at - now:.0f} s"
        if now < self._again_at:
            return f"punching failed with {len(self._lost)} peers in a row: our router most likely draws new ports"
        return ""

    def may_try(self, peer: PeerId, now: float) -> bool:
        """Return whether a try makes sense, whatever the address of the other end."""
        tries = self._tries.get(peer)
        return now >= self._again_at and (tries is None or now >= tries.again_at)

    def worked(self, peer: PeerId) -> None:
        """Record that punching succeeded."""
        self._tries.pop(peer, None)
        self._lost.clear()
        self._again_at = 0.0

    def failed(self, peer: PeerId, now: float) -> None:
        """Record that punching failed."""
        tries = self._tries.setdefault(peer, _Tries())
        self._tries.move_to_end(peer)
        pause_s = min(FIRST_PAUSE_S * 2**tries.failures, LONGEST_PAUSE_S)
        tries.failures, tries.again_at = min(tries.failures + 1, 16), now + pause_s
        while len(self._tries) > MAX_PEERS:
            self._tries.popitem(last=False)
        self._lost = {peer} | set(list(self._lost)[: MAX_PEERS - 1])
        if len(self._lost) >= LOST:
            self._again_at = now + OWN_PAUSE_S
