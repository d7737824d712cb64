"""The callers at the front: their places, what they cost per address block, and the address behind each connection that
gRPC sees."""

from __future__ import annotations

import contextlib
import enum
import math
import urllib.parse
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from peer.protocol.block_places import BlockPlaces
from peer.protocol.endpoints import block_of_host, host_of_caller
from peer.protocol.messages import PeerId, Way
from peer.protocol.token_bucket import Rate
from peer.protocol.wire.http2 import Allowance, FrameRates

FILES_EACH = 3
"""Open files per caller: its socket, and both ends of the connection inside."""
FILES_KEPT = 640
"""Open files left to the rest of the process. Each of the 64 peers that it may call takes five to eight."""
MAX_BLOCKS = 2048
"""Most address blocks whose use is stored."""
FREE_FRAMES = 32.0
"""Frames per connection that are not charged to its block: enough for a Hello and a few calls."""


HANDSHAKES, FRAMES = Rate(300.0, 300.0), Rate(1600.0, 4000.0)
"""Limits of the TLS handshakes, and of the frames, of all strangers together. They cost about a third of a
processor."""


class CallerRank(enum.Enum):
    """What is known of a caller."""

    UNKNOWN = enum.auto()
    """It has not proven a key."""
    KEYED = enum.auto()
    """It has proven a key. Keys cost nothing."""
    PROVEN = enum.auto()
    """It has proven the key of a proven peer."""


RATES = {
    CallerRank.UNKNOWN: FrameRates(control=Rate(8.0, 64.0), small=Rate(16.0, 128.0), data=Rate(0.0, 2.0**16)),
    CallerRank.KEYED: FrameRates(control=Rate(200.0, 400.0), small=Rate(200.0, 1000.0), data=Rate(2.0**20, 2.0**16)),
    CallerRank.PROVEN: FrameRates(control=Rate(400.0, 800.0), small=Rate(400.0, 2000.0), data=Rate(2.0**21, 2.0**17)),
}
"""Rate limits of one connection, by its caller's rank. A Hello takes five frames and some KiB of DATA. The number of
calls that a peer may make is limited by `peer.transport.server.rate_limits.CALLS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontLimits:
    """The limits of a front."""

    connections: int = 384
    """Most callers at once."""
    reserve: int = 64
    """Places among them reserved for proven peers."""
    of_key: int = 16
    """Connections for which one proven key may use reserved places. Two connections with all additional streams are
    ten."""
    greet_s: float = 30.0
    """Seconds in which a caller has to prove a key, by a Hello or a token."""
    linger_s: float = 5.0
    """Seconds in which the second end of a connection has to close after the first."""
    connect_s: float = 5.0
    """Timeout of connecting to gRPC, in seconds."""
    buffer: int = 2**16
    """Bytes buffered for a receiver before its sender is paused. One read may be buffered in addition."""
    handshakes: Rate = HANDSHAKES
    """TLS handshakes of all strangers. The calling blocks share the rate; each may have a whole burst."""
    frames: Rate = FRAMES
    """Frames of all strangers beyond `FREE_FRAMES`, shared in the same way."""
    wait_s: float = 2.0
    """Longest wait for a handshake in seconds. A caller that would wait longer is rejected."""
    held: int = 2**26
    """Bytes that callers without an admitted call may occupy together, in the front and in gRPC. Beyond that, the one
    that occupies most is disconnected."""

    def within(self, files: float) -> FrontLimits:
        """Return the limits for a process that may open `files` files. Few files mean fewer callers."""
        fits = max(8, int(min(files, 2**20) - FILES_KEPT) // FILES_EACH)
        if fits >= self.connections:
            return self
        return replace(self, connections=fits, reserve=min(self.reserve, fits // 6))


class FrontCaller:
    """One connection of a caller. `address` is in gRPC's notation, like `ipv4:192.0.2.7:55312`. `hang_up` closes the
    connection immediately. `changed` is called when its rank or its number of admitted calls changes."""

    def __init__(
        self,
        address: str,
        hang_up: Callable[[], None],
        way: Way | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`way`: the path of its connection; None: it dialled an address of ours."""
        self.address = address
        self.hang_up = hang_up
        self.way = way or Way()
        self.changed = changed
        self.seen_as = ""
        """Name of our end of the connection to gRPC, in gRPC's notation; empty: not connected yet."""
        self.key: PeerId | None = None
        """The first key that was proven over this connection."""
        self.kept_for: PeerId | None = None
        """The proven peer for which the connection occupies a reserved place."""
        self.calls = 0
        """Running admitted calls."""
        self.frames = 0.0
        """Frames sent, less those for which enough bytes were transferred (`take_spent` of the frame walker)."""
        self.block = block_of_host(host_of_caller(address))

    @property
    def rank(self) -> CallerRank:
        """What is known of the caller."""
        if self.kept_for is not None:
            return CallerRank.PROVEN
        return CallerRank.UNKNOWN if self.key is None else CallerRank.KEYED

    def connected(self, seen_as: str) -> None:
        """Record the name of our end of the connection to gRPC."""
        self.seen_as = seen_as

    def add_key(self, key: PeerId) -> bool:
        """Record a key proven over this connection. Return whether it is the first one."""
        self.key = self.key or key
        return self.key == key

    def count(self, frames: float) -> None:
        """Count frames that it sent."""
        self.frames += frames

    def calling(self, more: int) -> None:
        """Change the number of running admitted calls by `more`."""
        self.calls += more
        self.changed()

    def reserve_for(self, key: PeerId) -> None:
        """Record that its place is reserved for this proven peer."""
        self.kept_for = key


class _Block:
    """What the callers of one address block have used."""

    def __init__(self, limits: FrontLimits, now: float) -> None:
        self.callers = 0
        self.handshakes = Allowance(limits.handshakes, now)
        self.frames = Allowance(limits.frames, now)


class CallerTable:
    """All callers of one front. A caller is counted from accept on, before TLS."""

    def __init__(self, limits: FrontLimits | None = None) -> None:
        self.limits = limits or FrontLimits()
        self._places: BlockPlaces[FrontCaller] = BlockPlaces(self.limits.connections, self.limits.reserve)
        self._inside: dict[str, FrontCaller] = {}
        """Name of our end of the connection to gRPC -> caller."""
        self._proven: Counter[PeerId] = Counter()
        self._blocks: OrderedDict[str, _Block] = OrderedDict()
        self._calling = 0
        """Number of blocks that have callers."""
        self._held: dict[FrontCaller, int] = {}
        """Caller -> bytes that it occupies."""
        self._held_together = 0

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, caller: FrontCaller, now: float = 0.0) -> bool:
        """Give this caller a place, and return whether there is one. A caller that loses its place for it is
        disconnected."""
        placing = self._places.enter(caller, caller.block)
        if placing.evicted is not None:
            self._forget(placing.evicted)
            placing.evicted.hang_up()
        if placing.admitted:
            block = self._blocks.setdefault(caller.block, _Block(self.limits, now))
            self._blocks.move_to_end(caller.block)
            self._calling += block.callers == 0
            block.callers += 1
        return placing.admitted

    def connected(self, caller: FrontCaller, seen_as: str) -> None:
        """Record the address by which gRPC sees this caller."""
        if caller in self._places:
            caller.connected(seen_as)
            self._inside[seen_as] = caller

    def leave(self, caller: FrontCaller) -> None:
        """Free the place of a caller that disconnected."""
        if caller not in self._places:
            return
        if caller.kept_for is not None:  # callers in reserved places are never evicted
            self._proven[caller.kept_for] -= 1
            self._proven += Counter()  # drops entries at 0
        self._places.leave(caller)
        self._forget(caller)

    # -- what callers cost ---------------------------------------------------------------------------------------------

    def handshake_wait_s(self, caller: FrontCaller, now: float) -> float:
        """Return the seconds that a caller has to wait for its TLS handshake; infinity: too many of its block are
        waiting."""
        handshakes = self._share(caller, now).handshakes
        if handshakes.owes_s(now) > self.limits.wait_s:
            return math.inf
        handshakes.spend(1.0, now)
        return handshakes.owes_s(now)

    def charge_frames(self, caller: FrontCaller, frames: float, now: float) -> bool:
        """Charge frames to the caller's block. Return whether the caller may continue.

        Proven peers and the first `FREE_FRAMES` of each caller are not charged, so that an exhausted block does not
        prevent Hellos."""
        caller.count(frames)
        if caller.rank is CallerRank.PROVEN or caller.frames <= FREE_FRAMES or not frames:
            return True
        share = self._share(caller, now).frames
        share.spend(frames, now)
        return share.level >= 0

    def record_held(self, caller: FrontCaller, nbytes: int) -> None:
        """Record the bytes that a caller occupies. Beyond `FrontLimits.held` in total, the caller that occupies most is
        disconnected. Callers with an admitted call and proven peers do not count, because their calls are bounded
        elsewhere."""
        if caller not in self._places:
            return
        if caller.calls or caller.rank is CallerRank.PROVEN:
            nbytes = 0
        self._held_together += nbytes - self._held.get(caller, 0)
        self._held[caller] = nbytes
        while self._held_together > self.limits.held:
            largest = max(self._held, key=lambda one: self._held[one])
            self.leave(largest)
            largest.hang_up()

    def _share(self, caller: FrontCaller, now: float) -> _Block:
        """Return the usage of the caller's block, with its rates set to an equal share among all blocks that have
        callers."""
        block = self._blocks[caller.block]
        for allowance, rate in ((block.handshakes, self.limits.handshakes), (block.frames, self.limits.frames)):
            allowance.owes_s(now)  # settles the time until now at the old rate
            allowance.change(replace(rate, per_s=rate.per_s / max(1, self._calling)))
        return block

    # -- who gRPC's callers are ----------------------------------------------------------------------------------------

    def origin(self, seen_as: str) -> str | None:
        """Return the address of the caller that gRPC sees as `seen_as`; None: it did not come through this front."""
        caller = self._inside.get(seen_as)
        return None if caller is None else caller.address

    def way(self, seen_as: str) -> Way:
        """Return the path of the connection that gRPC sees as `seen_as`."""
        caller = self._inside.get(seen_as)
        return Way() if caller is None else caller.way

    def is_proven(self, seen_as: str) -> bool:
        """Return whether this connection has a reserved place of a proven peer."""
        caller = self._inside.get(seen_as)
        return caller is not None and caller.kept_for is not None

    def greeted(self, seen_as: str, key: PeerId, *, proven: bool) -> None:
        """Record that the caller that gRPC sees as `seen_as` proved this key. A proven peer gets a reserved place."""
        caller = self._inside.get(seen_as)
        if caller is not None:
            self.record_key(caller, key, proven=proven)

    def record_key(self, caller: FrontCaller, key: PeerId, *, proven: bool) -> None:
        """As `greeted`, for a known caller."""
        before, first = caller.rank, caller.add_key(key)
        if proven and first and caller.kept_for is None and self._proven[key] < self.limits.of_key:
            caller.reserve_for(key)
            self._proven[key] += 1
            self._places.prove(caller)
        if caller.rank is not before:
            caller.changed()

    @contextlib.contextmanager
    def calling(self, seen_as: str) -> Iterator[None]:
        """Count an admitted call of this caller during the block."""
        caller = self._inside.get(seen_as)
        if caller is None:
            yield
            return
        caller.calling(1)
        try:
            yield
        finally:
            caller.calling(-1)

    def _forget(self, caller: FrontCaller) -> None:
        """Remove all data of a connection that is ending."""
        if self._inside.get(caller.seen_as) is caller:
            del self._inside[caller.seen_as]
        self._held_together -= self._held.pop(caller, 0)
        block = self._blocks[caller.block]
        block.callers -= 1
        self._calling -= block.callers == 0
        while len(self._blocks) > MAX_BLOCKS and (
            idle := next((b for b, of in self._blocks.items() if not of.callers), None)
        ):
            del self._blocks[idle]


def seen_as(name: object) -> str:
    """Return a socket address in gRPC's notation; empty when there is none."""
    if not isinstance(name, tuple) or len(name) < 2:
        return ""
    host, port = str(name[0]), int(name[1])
    return f"ipv6:{urllib.parse.quote(f'[{host}]', safe=':')}:{port}" if ":" in host else f"ipv4:{host}:{port}"
