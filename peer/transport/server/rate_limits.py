"""Rate limits per proven peer id and, before a caller has proven its key, per remote address.

The module does no I/O; `now` is passed in. Every table is bounded.

The limits allow for 64 honest peers behind one address, such as a university, a carrier's NAT or a test swarm on
loopback. Each of these needs a Hello every ten minutes, and two after a reconnect. It has up to three calls running (a
swap, its heartbeat, a piece of state) and makes about five calls per second.

An address gets somewhat more than 64 times that. Resources that all addresses share are divided into places
(`peer.transport.server.call_places`), so that a few addresses cannot use them up. A peer gets up to ten times its need:
over a long line two swaps alone take eight calls (`peer.transport.wire.striping`)."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from peer.protocol.endpoints import RELAYED, block_of_host, host_of_caller
from peer.protocol.messages import PeerId
from peer.protocol.token_bucket import K, Rate, TokenBuckets

HELLOS = Rate(4.0, 256.0)
"""Hellos of one address: all 64 peers may reconnect twice at once, and again a minute later."""
BLAME = 2.0
"""Additional cost of a refused Hello.

An address that sends nothing valid is limited soon. One misconfigured peer that retries every second must not exclude
its neighbours."""
CALLS = Rate(50.0, 200.0)
"""Calls of one peer. A joiner that fetches small pieces over a fast line needs most."""
CALLS_OF_ADDRESS = Rate(400.0, 2000.0)
HELLOS_AT_ONCE = 64
"""Running Hellos of one address."""
CALLS_AT_ONCE = 16
"""Running calls of one peer."""
CALLS_AT_ONCE_OF_ADDRESS = 160
"""Running calls of one address."""
PIECES_AT_ONCE_OF_ADDRESS = 4
"""Pieces being sent to one address."""
STATES = 3.0
"""Complete states that one peer may fetch per STATES_S: one, and some retries."""
STATES_S = 600.0
LEAST_STATE = 64 * 2**20
"""Bytes. Smaller models are limited as if their state had this size."""
ARTIFACTS = Rate(4e9 / STATES_S, 4e9)
"""Bytes of artifacts that one peer may fetch: at first the content of a cache of the usual size, and the same amount
per STATES_S."""


def network_of(seen_as: str) -> str:
    """Return the network that counts as one address. `seen_as`: the address in gRPC's notation.

    It is an IPv4 address, or the /64 of an IPv6 address, because a single home has 2**64 of these. All callers over one
    relay count as one address, and so do all unreadable addresses."""
    if seen_as.startswith(RELAYED):
        return seen_as
    host = host_of_caller(seen_as)
    if ":" in host:
        return str(ipaddress.ip_network((host, 64), strict=False))
    return host or "unknown"


def block_of_network(network: str) -> str:
    """Return the address block of a network that `network_of` returned."""
    return network if network.startswith(RELAYED) else block_of_host(network.partition("/")[0])


@dataclass(frozen=True, slots=True)
class Caller:
    """Caller of a served call. `address`: its network, from `network_of`. `peer`: known once it has proven its key."""

    address: str
    peer: PeerId | None = None


class CallLimits:
    """All rate limits of one server.

    Each `enter_...` returns why it refuses, for a person. An empty string means that the caller is admitted, and the
    matching `leave_...` has to follow."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._hellos: TokenBuckets[str] = TokenBuckets(HELLOS)
        self._calls: TokenBuckets[PeerId] = TokenBuckets(CALLS)
        self._calls_of_address: TokenBuckets[str] = TokenBuckets(CALLS_OF_ADDRESS)
        self._bytes: TokenBuckets[PeerId] = TokenBuckets(self._bytes_rate(0))
        self._artifact_bytes: TokenBuckets[PeerId] = TokenBuckets(ARTIFACTS)
        self._state_nbytes = 0
        self._greeting: Counter[str] = Counter()
        self._calling: Counter[Caller] = Counter()
        self._pieces: Counter[str] = Counter()

    def enter_hello(self, address: str) -> str:
        if self._greeting[address] >= HELLOS_AT_ONCE:
            return "too many Hellos of your address are under way; try again in a second"
        if (wait := self._hellos.take(address, self._now())) > 0:
            return _later("Hellos from your address", wait)
        self._greeting[address] += 1
        return ""

    def leave_hello(self, address: str) -> None:
        _give_back(self._greeting, address)

    def blame(self, address: str) -> None:
        """Charge an address for a fault of a caller that proved no key, which reduces its Hellos for a while."""
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

    def enter_piece(self, caller: Caller, nbytes: int, *, artifact: bool = False) -> str:
        """Admit a piece of `nbytes` of a state or of an artifact.

        Pieces per address are limited as well, so that one address cannot take all places for fetching."""
        assert caller.peer is not None
        if self._pieces[caller.address] >= PIECES_AT_ONCE_OF_ADDRESS:
            return "too many pieces are being sent to your address already"
        if artifact:
            wait = self._artifact_bytes.take(caller.peer, self._now(), nbytes)
        else:
            wait = self._bytes.take(caller.peer, self._now(), nbytes, self._bytes_rate(self._state_nbytes))
        if wait > 0:
            return _later("bytes of artifacts" if artifact else "bytes of state", wait)
        self._pieces[caller.address] += 1
        return ""

    def leave_piece(self, caller: Caller) -> None:
        _give_back(self._pieces, caller.address)

    def set_state_nbytes(self, nbytes: int) -> None:
        """Set the size in bytes of the state that we donate."""
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
