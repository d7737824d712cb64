"""The quorum rule of a group: which peers must be together before a group may move its state. It is the memory behind
"one truth per group".

A fragment's **electors** are the members of the roster whose result made its present state, its base. The electors
travel with the base. A peer that says which base it builds on names them too, and a peer that catches up takes them
over. A result needs contributions of

* more than half of the electors, and more than half of every roster accepted after that base, for a peer may only have
  missed its result
* more than half of the largest of the last ten rosters this peer accepted, the present one included, so that a run does
  not dwindle into a corner of itself within a few rounds

Two rosters of one round never both give a result, for a peer contributes to one roster a round.

1. Both build on the same base. They have the same electors, and each has more than half of them among its contributors.
So one peer contributed to both.

2. One builds on an older base D, the other on a newer base made by roster E. E's result had more than half of D's
electors as contributors. So one of them, x, contributes again for D. It accepted E and missed the result, so it counts
E. It does not contribute to a roster that lists less than half of E. Every member listed said in this round that it
stands at D. The other result needs more than half of E at the newer base in the same round: one peer in both places.

So the rule holds however views differ and however many leaders are doubted. It holds over a restart, as far as a peer
finds its own memory again (`peer.protocol.group.quorum_codec`).

While there are no electors, a result needs more than half of three sets. They are the peers seen of late, the rosters
accepted, and the **founders**: the number of peers with which the group begins, as Consul's `bootstrap_expect`. If
there are no more peers than founders, two results have a contributor in common. Without founders in the manifest, peers
that were cut off from each other at the start may each found a group. So may peers between states that the operator
sets.

Losing more than half of the electors at once stops the group until they are back. A run must not stand still for ever
for peers that left for good. So electors older than `EXPIRE` rounds of their fragment no longer count: the numbers
alone do, and newcomers with them. A network may be cut in two for longer than that. If the smaller side gains as many
newcomers as the larger side has members, there may be two truths. Founders that do not come are waited for as long."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from blake3 import blake3

from peer.protocol.messages import PeerId

SIZES = 10
"""Number of last rosters whose sizes count, and of last rounds whose peers count."""
EXPIRE = 10
"""Rounds of a fragment after which its electors no longer count."""
KEPT = SIZES + 1
"""Rosters of a fragment that are remembered at most: the electors', and those accepted since."""


@dataclass(frozen=True, slots=True)
class Base:
    """A fragment's state, and the electors that made it."""

    digest: bytes
    """BLAKE3 of outer_params and momentum, 32 bytes."""
    electors: tuple[PeerId, ...] = ()
    """Sorted. Empty: no result made the state (the start of a run, a reset)."""
    since: int = -1
    """The round of the electors' roster. -1: there are none."""

    def mark(self) -> bytes:
        """Return one value for the base: peers with the same one may average together."""
        text = f"{self.since}/{'/'.join(self.electors)}".encode()
        return blake3(self.digest + text).digest()


@dataclass(frozen=True, slots=True)
class Rosters:
    """The rosters of a fragment that outlive a restart."""

    rosters: tuple[tuple[int, tuple[PeerId, ...]], ...] = ()
    """(round, members), the oldest first: the electors', and those accepted since."""
    sizes: tuple[int, ...] = ()
    """Sizes of the last rosters accepted."""
    seen: tuple[int, ...] = ()
    """Numbers of peers in the last rounds, which count before the first roster."""


class Quorum:
    """One peer's memory of one fragment's rosters. `period`: rounds between two exchanges of the fragment. `founders`:
    how many peers the group begins with, 0: not given in the manifest."""

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
        return Base(digest, self._electors, self._since)

    def needed(self, live: int) -> int:
        """Return how many contributors a result needs by number. `live`: peers seen now, this one included. Until the
        first result the peers seen of late and the founders count, so that a peer that is cut off then founds no
        group."""
        if self._since >= 0 and self._sizes:
            return max(self._sizes) // 2 + 1
        awaited = self._founders if self._since < 0 and len(self._seen) < SIZES else 0
        return max(live, awaited, *self._seen, *self._sizes, 1) // 2 + 1

    def record_live(self, live: int) -> None:
        """Record the number of live peers, including this one, at the start of a round."""
        self._seen.append(live)

    def lacking(self, round_: int, peers: Collection[PeerId], live: int = 1) -> str:
        """Return why these peers are too few to move the state in this round, as a sentence. Empty: they are enough."""
        if len(peers) < (needed := self.needed(live)):
            return f"{len(peers)} of the {needed} peers that it takes"
        present = set(peers)
        for since, members in self._counted(round_):
            if 2 * len(present.intersection(members)) <= len(members):
                here = len(present.intersection(members))
                return f"only {here} of the {len(members)} members of round {since}'s roster; more than half are needed"
        return ""

    def enough_for(self, base: Base, round_: int, peers: Collection[PeerId], live: int) -> bool:
        """Check the number alone, for a roster on a base that may not be ours: a leader's first look."""
        if len(peers) < self.needed(live):
            return False
        here = len(set(peers).intersection(base.electors))
        return self._expired(base.since, round_) or 2 * here > len(base.electors)

    def accepted(self, round_: int, members: tuple[PeerId, ...]) -> None:
        """Count a roster that this peer contributes to, whether it sees the result or not."""
        self._sizes.append(len(members))
        self._pending.append((round_, members))
        del self._pending[:-KEPT]

    def adopt(self, base: Base) -> None:
        """Take over a state, made by this peer's own step or fetched, with its electors. Rosters accepted later still
        count: they may have made a result, too."""
        self._electors, self._since = base.electors, base.since
        self._pending = [(round_, members) for round_, members in self._pending if round_ > base.since]

    def remembers(self, base: Base) -> bool:
        """Whether the roster that made this state is one of ours: by our own memory, whatever a peer says of it."""
        return (base.since, base.electors) in [(self._since, self._electors), *self._pending]

    @property
    def since(self) -> int:
        """The round of the roster that made the state. -1: none did."""
        return self._since

    def remembered(self) -> Rosters:
        """Return the rosters that must outlive a restart."""
        own = [(self._since, self._electors)] if self._electors else []
        return Rosters(tuple([*own, *self._pending][-KEPT:]), tuple(self._sizes), tuple(self._seen))

    def recall(self, kept: Rosters) -> None:
        """Restore the rosters after a restart. The electors of the state on disk are not known, so every remembered
        roster counts. More than half of each must be there, until they expire or this peer catches up with the
        group."""
        self._electors, self._since = (), -1
        self._pending = list(kept.rosters)
        self._sizes.extend(kept.sizes)
        self._seen.extend(kept.seen)

    def _counted(self, round_: int) -> list[tuple[int, tuple[PeerId, ...]]]:
        rosters = [(self._since, self._electors), *self._pending]
        return [(since, members) for since, members in rosters if members and not self._expired(since, round_)]

    def _expired(self, since: int, round_: int) -> bool:
        return since < 0 or round_ - since > EXPIRE * self._period
