"""How much one caller may ask for: per proven peer id, and per remote address for what happens before a proof. Pure but
for being told `now`; every table is bounded.

The numbers leave room for 64 honest peers behind one address (a university, a carrier's NAT, a test swarm on loopback):
each needs a Hello in ten minutes (two after a reconnect), up to three calls under way (a swap, its heartbeat, a piece
of state) and about five calls a second. An address therefore gets 64 times that with some slack, and the addresses
together never all of what the server takes (`grpc` counts 256 calls in all). A peer gets up to ten times what it needs:
over a long line two swaps alone take eight calls (`peer.transport.wire.striping`)."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from peer.protocol.endpoints import host_of_caller
from peer.protocol.messages import PeerId
from peer.protocol.token_bucket import K, Rate, TokenBuckets

HELLOS = Rate(4.0, 256.0)
"""Of one address: all 64 reconnect twice at once, then a fresh burst in a minute."""
BLAME = 2.0
"""What a refused Hello costs more: an address that only makes noise has 85 tries, then 4 in three seconds. Not so much
that one wrongly set up peer that asks again every second keeps its neighbours out."""
CALLS = Rate(50.0, 200.0)
"""Of one peer. A joiner that fetches small pieces over a fast line needs the most."""
CALLS_OF_ADDRESS = Rate(400.0, 2000.0)
HELLOS_AT_ONCE = 64
HELLOS_AT_ONCE_IN_ALL = 128
CALLS_AT_ONCE = 16
CALLS_AT_ONCE_OF_ADDRESS = 160
"""With HELLOS_AT_ONCE less than what the server takes: one address cannot use up all of it."""
PIECES_AT_ONCE_OF_ADDRESS = 4
STATES = 3.0
"""How often one peer may fetch a whole state in STATES_S: once, and some retries."""
STATES_S = 600.0
LEAST_STATE = 64 * 2**20
"""Bytes; for small models the limit is of no use."""


def network_of(seen_as: str) -> str:
    """What a limit counts as one address, from gRPC's `context.peer()`: an IPv4 address, or the /64 of an IPv6 address,
    of which a single home has 2**64. What cannot be read is one more address."""
    host = host_of_caller(seen_as)
    if ":" in host:
        return str(ipaddress.ip_network((host, 64), strict=False))
    return host or "unknown"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls; `peer` once a key is proven."""

    address: str
    peer: PeerId | None = None


class CallLimits:
    """All limits of one server. What asks answers with why not, for a person; empty: go on, and give back what was
    entered when it ends."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._hellos: TokenBuckets[str] = TokenBuckets(HELLOS)
        self._calls: TokenBuckets[PeerId] = TokenBuckets(CALLS)
        self._calls_of_address: TokenBuckets[str] = TokenBuckets(CALLS_OF_ADDRESS)
        self._bytes: TokenBuckets[PeerId] = TokenBuckets(self._bytes_rate(0))
        self._state_nbytes = 0
        self._greeting: Counter[str] = Counter()
        self._calling: Counter[Caller] = Counter()
        self._pieces: Counter[str] = Counter()

    def enter_hello(self, address: str) -> str:
        if self._greeting[address] >= HELLOS_AT_ONCE or self._greeting.total() >= HELLOS_AT_ONCE_IN_ALL:
            return "too many Hellos are under way; try again in a second"
        if (wait := self._hellos.take(address, self._now())) > 0:
            return _later("Hellos from your address", wait)
        self._greeting[address] += 1
        return ""

    def leave_hello(self, address: str) -> None:
        _give_back(self._greeting, address)

    def blame(self, address: str) -> None:
        """An offence of a caller that proved no key: its address may say Hello less often for a while."""
        self._hellos.charge(address, self._now(), BLAME)

    def enter_call(self, caller: Caller) -> str:
        assert caller.peer is not None
        of_peer, of_address = replace(caller, address=""), replace(caller, peer=None)
        if self._calling[of_peer] >= CALLS_AT_ONCE or self._calling[of_address] >= CALLS_AT_ONCE_OF_ADDRESS:
            return "too many of your calls are under way"
        now = self._now()
        if (wait := self._calls.take(caller.peer, now)) > 0:
            return _later("calls", wait)
        if (wait := self._calls_of_address.take(caller.address, now)) > 0:
            return _later("calls from your address", wait)
        self._calling[of_peer] += 1
        self._calling[of_address] += 1
        return ""

    def leave_call(self, caller: Caller) -> None:
        _give_back(self._calling, replace(caller, address=""))
        _give_back(self._calling, replace(caller, peer=None))

    def enter_piece(self, caller: Caller, nbytes: int) -> str:
        """`nbytes` of state. The address is limited as well: a place to fetch in stays free for others."""
        assert caller.peer is not None
        if self._pieces[caller.address] >= PIECES_AT_ONCE_OF_ADDRESS:
            return "too many pieces are being sent to your address already"
        wait = self._bytes.take(caller.peer, self._now(), nbytes, self._bytes_rate(self._state_nbytes))
        if wait > 0:
            return _later("bytes of state", wait)
        self._pieces[caller.address] += 1
        return ""

    def leave_piece(self, caller: Caller) -> None:
        _give_back(self._pieces, caller.address)

    def state_is(self, nbytes: int) -> None:
        """How large the state is that we donate, bytes."""
        self._state_nbytes = nbytes

    def _bytes_rate(self, state_nbytes: int) -> Rate:
        burst = STATES * max(state_nbytes, LEAST_STATE)
        return Rate(burst / STATES_S, burst)


def _later(what: str, wait_s: float) -> str:
    return f"too many {what}; try again in {wait_s:.1f} s"


def _give_back(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
