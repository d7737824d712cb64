"""The callers at the front: their places, and the address behind each connection that gRPC sees."""

from __future__ import annotations

import urllib.parse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from peer.protocol.block_places import BlockPlaces
from peer.protocol.endpoints import block_of_host, host_of_caller
from peer.protocol.messages import PeerId, Way

FILES_EACH = 3
"""Open files of one caller: its socket, and both ends of the connection inside."""
FILES_KEPT = 384
"""Open files that are left to the rest of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontLimits:
    """The bounds of a front."""

    connections: int = 384
    """Callers at once."""
    reserve: int = 64
    """Places among them that strangers never get."""
    of_key: int = 16
    """Connections with which one proven key keeps its places. Two connections with all their stripes are ten."""
    greet_s: float = 30.0
    """Seconds in which a caller has to prove a key, by a Hello or by a token."""
    linger_s: float = 5.0
    """Seconds for the second end of a connection to close after the first."""
    connect_s: float = 5.0
    """Seconds for the connection inside."""
    buffer: int = 2**16
    """Bytes held for a receiver before its sender has to wait. One read may be held on top."""

    def within(self, files: float) -> FrontLimits:
        """Return the limits of a process that may open so many files: with few, there are fewer callers."""
        fits = max(8, int(min(files, 2**20) - FILES_KEPT) // FILES_EACH)
        if fits >= self.connections:
            return self
        return replace(self, connections=fits, reserve=min(self.reserve, fits // 6))


class FrontCaller:
    """One connection of a caller. `address` is as gRPC writes it, like `ipv4:192.0.2.7:55312`, and `hang_up` ends the
    connection at once."""

    def __init__(self, address: str, hang_up: Callable[[], None], way: Way | None = None) -> None:
        """`way`: the path of its connection; None: it called an address of ours."""
        self.address = address
        self.hang_up = hang_up
        self.way = way or Way()
        self.port = 0
        """Port of our end of the connection inside; 0: there is none yet."""
        self.key: PeerId | None = None
        """The key that was proven over this connection first."""
        self.kept_for: PeerId | None = None
        """The proven peer for which the connection keeps its place."""

    def connected(self, port: int) -> None:
        """Note our port inside."""
        self.port = port

    def show(self, key: PeerId) -> bool:
        """Take a key that was proven over this connection; return whether it is the first one."""
        self.key = self.key or key
        return self.key == key

    def keep_for(self, key: PeerId) -> None:
        """Keep the place for this proven peer."""
        self.kept_for = key


class CallerTable:
    """All callers of one front. A caller counts from the moment it is accepted, before TLS."""

    def __init__(self, limits: FrontLimits | None = None) -> None:
        self.limits = limits or FrontLimits()
        self._places: BlockPlaces[FrontCaller] = BlockPlaces(self.limits.connections, self.limits.reserve)
        self._inside: dict[int, FrontCaller] = {}
        self._proven: Counter[PeerId] = Counter()

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, caller: FrontCaller) -> bool:
        """Return whether there is a place for this caller. The one that loses its place to it is hung up on."""
        placing = self._places.enter(caller, block_of_host(host_of_caller(caller.address)))
        if placing.evicted is not None:
            self._forget(placing.evicted)
            placing.evicted.hang_up()
        return placing.admitted

    def connected(self, caller: FrontCaller, port: int) -> None:
        """Note that gRPC sees this caller as `port` of loopback."""
        if caller in self._places:
            caller.connected(port)
            self._inside[port] = caller

    def leave(self, caller: FrontCaller) -> None:
        """Free the place of a caller that is gone."""
        if caller in self._places and caller.kept_for is not None:  # one that is kept is never evicted
            self._proven[caller.kept_for] -= 1
            self._proven += Counter()  # drops those that have none left
        self._places.leave(caller)
        self._forget(caller)

    def origin(self, seen_as: str) -> str | None:
        """Return a caller's own address, for the one that gRPC sees. None: it did not come through this front."""
        caller = self._caller(seen_as)
        return None if caller is None else caller.address

    def way(self, seen_as: str) -> Way:
        """Return the path of the connection that gRPC sees so."""
        caller = self._caller(seen_as)
        return Way() if caller is None else caller.way

    def is_proven(self, seen_as: str) -> bool:
        """Return whether a proven peer has shown its key over this connection."""
        caller = self._caller(seen_as)
        return caller is not None and caller.kept_for is not None

    def greeted(self, seen_as: str, key: PeerId, *, proven: bool) -> None:
        """Note that the caller proved this key. A proven peer's connection goes to the reserve at once."""
        caller = self._caller(seen_as)
        if caller is not None:
            self.shown(caller, key, proven=proven)

    def shown(self, caller: FrontCaller, key: PeerId, *, proven: bool) -> None:
        """Note whose connection it is, as `greeted` does."""
        first = caller.show(key)
        if proven and first and caller.kept_for is None and self._proven[key] < self.limits.of_key:
            caller.keep_for(key)
            self._proven[key] += 1
            self._places.prove(caller)

    def _caller(self, seen_as: str) -> FrontCaller | None:
        if host_of_caller(seen_as) != "127.0.0.1":
            return None
        return self._inside.get(int(seen_as.rpartition(":")[2]))

    def _forget(self, caller: FrontCaller) -> None:
        """Forget what is known of a connection that is ending."""
        if self._inside.get(caller.port) is caller:
            del self._inside[caller.port]


def seen_as(name: object) -> str:
    """Return the name of a socket's remote end as gRPC writes it; empty when there is none."""
    if not isinstance(name, tuple) or len(name) < 2:
        return ""
    host, port = str(name[0]), int(name[1])
    return f"ipv6:{urllib.parse.quote(f'[{host}]', safe=':')}:{port}" if ":" in host else f"ipv4:{host}:{port}"
