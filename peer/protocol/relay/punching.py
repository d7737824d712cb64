"""When to try to punch: a router that never lets it succeed should not cost every connection two seconds. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from peer.protocol.endpoints import host_of, port_of, version_of
from peer.protocol.messages import PeerId
from peer.protocol.swarm.nearness import is_private

FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 3600.0
"""Seconds without a try after a failure with a peer; doubled by each further one. Routers restart and move."""
LOST = 3
"""Peers in a row with which it failed, and none with which it worked: then our own router most likely spoils it."""
OWN_PAUSE_S = 600.0
MAX_PEERS = 256
LEAST_PORT = 1024


def implausible(seen: str, *, private_run: bool) -> str:
    """Return why the address that a relay names cannot be that of the other end; empty: it can. `seen`: `host:port`.

    The ports of connections that a router or a machine opens begin at 1024 (RFC 6056). Below are services of others."""
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
    """What became of our tries. Times in seconds of one clock."""

    def __init__(self) -> None:
        self._tries: OrderedDict[PeerId, _Tries] = OrderedDict()
        self._lost: set[PeerId] = set()
        """Peers with which it failed since it last worked with anybody."""
        self._again_at = 0.0

    def skip_reason(self, peer: PeerId, seen: str, *, private_run: bool, now: float) -> str:
        """Return why it is not tried now, for a person; empty: it is. `seen`: the address, `host:port`, at which the
        relay sees the other end."""
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
        """Return whether a try makes sense, as far as the address does not matter."""
        tries = self._tries.get(peer)
        return now >= self._again_at and (tries is None or now >= tries.again_at)

    def worked(self, peer: PeerId) -> None:
        """Note a punched connection."""
        self._tries.pop(peer, None)
        self._lost.clear()
        self._again_at = 0.0

    def failed(self, peer: PeerId, now: float) -> None:
        """Note a try that opened nothing."""
        tries = self._tries.setdefault(peer, _Tries())
        self._tries.move_to_end(peer)
        pause_s = min(FIRST_PAUSE_S * 2**tries.failures, LONGEST_PAUSE_S)
        tries.failures, tries.again_at = min(tries.failures + 1, 16), now + pause_s
        while len(self._tries) > MAX_PEERS:
            self._tries.popitem(last=False)
        self._lost = {peer} | set(list(self._lost)[: MAX_PEERS - 1])
        if len(self._lost) >= LOST:
            self._again_at = now + OWN_PAUSE_S
