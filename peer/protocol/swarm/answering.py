"""Memory of peers that did not answer. For some time they are asked only after all other peers. This time doubles with
each failure.

An answer or an exchange clears the failures. A call from the peer does not, because any key can call. The failures also
expire: otherwise two halves of a network that was divided would avoid each other after it is repaired. The module is
pure: `now` is an argument, in seconds."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from peer.protocol.messages import PeerId

FIRST_S, MOST_S = 60.0, 3600.0
"""Seconds after the first failure, and maximum seconds after any."""
MAX_PEERS = 4096


@dataclass(slots=True)
class Answering:
    """The peers that had contact with this one, and those that did not answer our last call."""

    _contacts: OrderedDict[PeerId, None] = field(default_factory=OrderedDict)
    _silent: OrderedDict[PeerId, tuple[float, float]] = field(default_factory=OrderedDict)
    """For each peer, until when it is asked last, and the length of that time."""

    def called(self, peer: PeerId) -> None:
        """Record that this peer called us."""
        if peer not in self._silent:
            self._contacts[peer] = None
            self._contacts.move_to_end(peer)
            if len(self._contacts) > MAX_PEERS:
                self._contacts.popitem(last=False)

    def answered(self, peer: PeerId) -> None:
        """Record that this peer answered us, or exchanged with us."""
        self._silent.pop(peer, None)
        self.called(peer)

    def failed(self, peer: PeerId, now: float) -> None:
        """Record that this peer did not answer a call."""
        self._contacts.pop(peer, None)
        until, before_s = self._silent.get(peer, (now, FIRST_S / 2))
        if now < until:
            return
        after_s = min(2 * before_s, MOST_S)
        self._silent[peer] = now + after_s, after_s
        self._silent.move_to_end(peer)
        if len(self._silent) > MAX_PEERS:
            self._silent.popitem(last=False)

    def asked_last(self, now: float) -> set[PeerId]:
        """Return the peers that are asked after all others now."""
        return {peer for peer, (until, _) in self._silent.items() if until > now}

    def contacts(self) -> int:
        """Return the number of peers with recent contact."""
        return len(self._contacts)

    def forget(self) -> None:
        """Clear all failures after a sleep of this machine, which may have caused them."""
        self._silent.clear()
