"""The memory of who answers: who did not is asked last for a while, twice as long after every further failure.

An answer or an exchange forgives. A call of the other does not: any key can call. Time forgives too: otherwise the two
halves of a mended net would avoid each other. The module is pure: `now` is an argument, in seconds."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from peer.protocol.messages import PeerId

FIRST_S, MOST_S = 60.0, 3600.0
"""Seconds after the first failure, and most seconds after any."""
MAX_PEERS = 4096


@dataclass(slots=True)
class Answering:
    """The peers that were in contact with this one, and those whose last call came to nothing."""

    _contacts: OrderedDict[PeerId, None] = field(default_factory=OrderedDict)
    _silent: OrderedDict[PeerId, tuple[float, float]] = field(default_factory=OrderedDict)
    """Until when each is asked last, and for how long that was."""

    def called(self, peer: PeerId) -> None:
        """Note a call of this peer."""
        if peer not in self._silent:
            self._contacts[peer] = None
            self._contacts.move_to_end(peer)
            if len(self._contacts) > MAX_PEERS:
                self._contacts.popitem(last=False)

    def answered(self, peer: PeerId) -> None:
        """Note an answer of this peer, or an exchange with it."""
        self._silent.pop(peer, None)
        self.called(peer)

    def failed(self, peer: PeerId, now: float) -> None:
        """Note that a call to this peer was not answered."""
        self._contacts.pop(peer, None)
        until, before_s = self._silent.get(peer, (now, FIRST_S / 2))
        if now < until:
            return
        after_s = min(2 * before_s, MOST_S)
        self._silent[peer] = now + after_s, after_s
        self._silent.move_to_end(peer)
        if len(self._silent) > MAX_PEERS:
            self._silent.popitem(last=False)

    def asked_last(self, peer: PeerId, now: float) -> bool:
        """Whether this peer is asked after all others now."""
        return self._silent.get(peer, (now, 0.0))[0] > now

    def contacts(self) -> int:
        """Return how many peers there is reason to believe in."""
        return len(self._contacts)

    def forget(self) -> None:
        """Forgive all after a sleep of this machine: their failures say nothing."""
        self._silent.clear()
