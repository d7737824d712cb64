"""The quorum rule of a group: which peers must contribute before the group's state may move. It ensures that a group
never splits into two groups with different states.

The **base** of a fragment is its present state, and its **electors** are the members of the roster whose result made
that state. The electors are stored and sent with the base. A peer that joins a round from a base names its electors,
and a peer that catches up adopts them. A result needs contributions of

* more than half of the electors, and more than half of every roster accepted after that base (the peer may have missed
  the result of such a roster)
* more than half of the largest of the last ten rosters that this peer accepted, including the present one, so that the
  group cannot shrink to a small remainder within a few rounds

Two rosters of one round never both give a result, because a peer contributes to one roster per round.

1. If both build on the same base, they have the same electors, and each has more than half of them among its
contributors. So one peer would have contributed to both.

2. If one builds on an older base D and the other on a newer base made by roster E: E's result had more than half of D's
electors as contributors. So one of them, x, would contribute again for D. x accepted E and missed its result, so x
counts E. x does not contribute to a roster that lists less than half of E, and every listed member stated in this round
that it is at D. The other result needs more than half of E at the newer base in the same round. So one peer would be at
both bases.

The rule holds however much the peers' views differ, and however many leaders are suspected. It holds over a restart, as
far as a peer can read its stored rosters (`peer.protocol.group.quorum_codec`).

While there are no electors, a result needs more than half of the largest of three numbers: the peers seen lately, the
members of a roster accepted so far, and the **founders**, the number of peers with which the group starts (as Consul's
`bootstrap_expect`). If there are no more peers than founders, any two results have a common contributor. Without
founders in the manifest, peers that are separated at the start may each found a group. The same is possible after the
operator sets a new state.

If more than half of the electors disappear at once, the group stops until they are back. It must not wait forever for
peers that left for good. So electors older than `EXPIRE` rounds of their fragment no longer count; then only the
numbers count, and newcomers with them. A network may be divided for longer than that. If the smaller side gains as many
newcomers as the larger side has members, the group can split. Missing founders are waited for equally long."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from blake3 import blake3

from peer.protocol.messages import PeerId

SIZES = 10
"""Latest rosters whose sizes count, and latest rounds whose numbers of peers count."""
EXPIRE = 10
"""Rounds of a fragment after which its electors no longer count."""
KEPT = SIZES + 1
"""Maximum rosters of a fragment that are remembered: that of the electors, and those accepted since."""


@dataclass(frozen=True, slots=True)
class Base:
    """The state of a fragment, and the electors that made it."""

    digest: bytes
    """BLAKE3 of outer_params and momentum, 32 bytes."""
    electors: tuple[PeerId, ...] = ()
    """Sorted. Empty: no result made this state (the start of a run, or a reset)."""
    since: int = -1
    """Round of the electors' roster. -1: there are no electors."""

    def mark(self) -> bytes:
        """Return a hash of the base. Peers with equal marks may average together."""
        text = f"{self.since}/{'/'.join(self.electors)}".encode()
        return blake3(self.digest + text).digest()


@dataclass(frozen=True, slots=True)
class Rosters:
    """The rosters of a fragment that are stored over a restart."""

    rosters: tuple[tuple[int, tuple[PeerId, ...]], ...] = ()
    """(round, members), oldest first: the electors, and the rosters accepted since."""
    sizes: tuple[int, ...] = ()
    """Sizes of the latest accepted rosters."""
    seen: tuple[int, ...] = ()
    """Numbers of peers in the latest rounds, which count before the first roster."""


class Quorum:
    """One peer's memory of the rosters of one fragment.

    `period`: rounds between two exchanges of the fragment. `founders`: number of peers with which the group starts; 0:
    not given in the manifest."""

    def __init__(self, period: int = 1, founders: int = 0) -> None:
        assert period >= 1, period
        self._period = period
        self._founders = founders
        self._electors: tuple[PeerId, ...] = ()
        self._since = -1
        self._pending: list[tuple[int, tuple[PeerId, ...]]] = []
        self._sizes: deque[int] = deque(maxlen=SIZES)
        self._seen: deque[int] = deque(maxlen=SIZES)

    def base(self, digest: bytes) -> Base:
        """Return the base with this digest and the present electors."""
        return Base(digest, self._electors, self._since)

    def needed(self, live: int) -> int:
        """Return how many contributors a result needs. `live`: number of peers visible now, including this one.

        Until the first result, peers seen lately and founders count too, so that a peer that is isolated at that time
        does not found a group of its own."""
        if self._since >= 0 and self._sizes:
            return max(self._sizes) // 2 + 1
        awaited = self._founders if self._since < 0 and len(self._seen) < SIZES else 0
        return max(live, awaited, *self._seen, *self._sizes, 1) // 2 + 1

    def record_live(self, live: int) -> None:
        """Record the number of live peers, including this one, at the start of a round."""
        self._seen.append(live)

    def shortfall_reason(self, round_: int, peers: Collection[PeerId], live: int = 1) -> str:
        """Return why these peers may not move the state in this round, as a sentence. Empty: they may."""
        if len(peers) < (needed := self.needed(live)):
            return f"{len(peers)} of the {needed} peers that it takes"
        present = set(peers)
        for since, members in self._counted(round_):
            if 2 * len(present.intersection(members)) <= len(members):
                here = len(present.intersection(members))
                return f"only {here} of the {len(members)} members of round {since}'s roster; more than half are needed"
        return ""

    def enough_for(self, base: Base, round_: int, peers: Collection[PeerId], live: int) -> bool:
        """Return whether these peers may be enough for a roster on a base that need not be ours. This is a leader's
        first check, which considers only the number of peers and the electors of the base."""
        if len(peers) < self.needed(live):
            return False
        here = len(set(peers).intersection(base.electors))
        return self._expired(base.since, round_) or 2 * here > len(base.electors)

    def accepted(self, round_: int, members: tuple[PeerId, ...]) -> None:
        """Record a roster to which this peer contributes, whether or not it receives the result."""
        self._sizes.append(len(members))
        self._pending.append((round_, members))
        del self._pending[:-KEPT]

    def adopt(self, base: Base) -> None:
        """Take the electors of a new state, which came from this peer's own step or was fetched. Rosters accepted later
        still count, because they may also have made a result."""
        self._electors, self._since = base.electors, base.since
        self._pending = [(round_, members) for round_, members in self._pending if round_ > base.since]

    def remembers(self, base: Base) -> bool:
        """Return whether this peer itself accepted the roster that made this state, whatever others claim."""
        return (base.since, base.electors) in [(self._since, self._electors), *self._pending]

    @property
    def since(self) -> int:
        """Round of the roster that made the state. -1: none did."""
        return self._since

    def remembered(self) -> Rosters:
        """Return the rosters to store over a restart."""
        own = [(self._since, self._electors)] if self._electors else []
        return Rosters(tuple([*own, *self._pending][-KEPT:]), tuple(self._sizes), tuple(self._seen))

    def recall(self, kept: Rosters) -> None:
        """Restore the rosters after a restart. Which of them made the state on disk is not known, so every remembered
        roster counts: more than half of each is needed until it expires or this peer catches up with the group."""
        self._electors, self._since = (), -1
        self._pending = list(kept.rosters)
        self._sizes.extend(kept.sizes)
        self._seen.extend(kept.seen)

    def _counted(self, round_: int) -> list[tuple[int, tuple[PeerId, ...]]]:
        rosters = [(self._since, self._electors), *self._pending]
        return [(since, members) for since, members in rosters if members and not self._expired(since, round_)]

    def _expired(self, since: int, round_: int) -> bool:
        return since < 0 or round_ - since > EXPIRE * self._period
