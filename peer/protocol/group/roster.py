"""A round of a group: who leads it, how its leader collects the members, and the roster that it signs. Pure: the leader
is told of joins and of the time, and says when the roster is closed.

Everybody orders the peers it sees by a keyed hash of (run, round, fragment, id) and asks the first one to lead; who
does not answer is passed over for the next. Two leaders may so be at work in one round; `peer.protocol.group.quorum`
says why not more than one of their rosters gives a result."""

from __future__ import annotations

import enum
import hashlib
import itertools
import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from peer.errors import BadPayload
from peer.protocol.group.quorum import Base
from peer.protocol.group.receipts import NO_VOUCHERS, Vouchers
from peer.protocol.messages import MAX_ROUND, PeerId, RoundKey, RunId

ROSTER_DOMAIN = b"peer roster v1"
MAX_MEMBERS = 64
"""Whatever the manifest says: what a roster may cost those that read it."""
MAX_ROSTER_BYTES = 16 * 1024
LEAST_GRACE_S = 0.5
_MAX_ID = 64


@dataclass(frozen=True, slots=True)
class Join:
    """`I take part in this round, from this base.`"""

    key: RoundKey
    base: Base
    dialable: bool = True
    """Only members that others can dial own shards."""
    wait_s: float = 0.0
    """How long the leader may hold the call before it says WAIT."""
    given: Vouchers = NO_VOUCHERS
    """What the owners of shards put their names to when they last gave us results of this fragment."""


class JoinStatus(enum.StrEnum):
    """What a leader answers."""

    ROSTER = "roster"
    """It is closed: here it is, whether you are in it or not."""
    WAIT = "wait"
    """Not closed yet; ask again at once."""
    NONE = "none"
    """There will be none from here; `reason` says why."""


@dataclass(frozen=True, slots=True)
class SignedRoster:
    """As it travels: the exact bytes, and the leader's signature over them (`ROSTER_DOMAIN`)."""

    raw: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class JoinReply:
    told: JoinStatus
    roster: SignedRoster | None = None
    collecting: bool = False
    """With WAIT: whether this peer leads the round already."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Roster:
    """Who averages in a round, and what they build on."""

    run_id: RunId
    key: RoundKey
    leader: PeerId
    """May be none of the members: its own base may be another one."""
    base: Base
    members: tuple[PeerId, ...]
    """Sorted."""
    owners: tuple[PeerId, ...]
    """Those of them that others can dial, sorted: they own the shards."""

    def to_bytes(self) -> bytes:
        """What is signed; the one spelling of this roster."""
        body = {
            "base": self.base.digest.hex(),
            "electors": list(self.base.electors),
            "fragment": self.key.fragment,
            "leader": self.leader,
            "members": list(self.members),
            "owners": list(self.owners),
            "round": self.key.round,
            "run": self.run_id.hex(),
            "since": self.base.since,
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()

    def name(self) -> bytes:
        """BLAKE3 of its bytes: what contributions name."""
        return blake3(self.to_bytes()).digest()


def parse_roster(raw: bytes) -> Roster:
    """A roster's bytes, its form checked, not its signature. Raises BadPayload (`roster`)."""
    if len(raw) > MAX_ROSTER_BYTES:
        raise BadPayload("roster", f"a roster of {len(raw)} bytes; at most {MAX_ROSTER_BYTES} are read")
    try:
        body = json.loads(raw)
        roster = _roster_of(body)
        same = roster.to_bytes() == raw
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadPayload("roster", "the roster cannot be read") from None
    if not same:
        raise BadPayload("roster", "the roster is not spelled as rosters are")
    return roster


def _roster_of(body: dict[str, Any]) -> Roster:
    base = Base(bytes.fromhex(body["base"]), ids_of(body["electors"]), body["since"])
    members, owners = ids_of(body["members"]), ids_of(body["owners"])
    round_, fragment = body["round"], body["fragment"]
    numbers = type(round_) is int and type(fragment) is int and 0 <= round_ < MAX_ROUND and 0 <= fragment < 2**32
    if not (numbers and members and owners and set(owners) <= set(members)):
        raise ValueError("members")
    check_base(base)
    (leader,) = ids_of([body["leader"]])
    return Roster(RunId(bytes.fromhex(body["run"])), RoundKey(round_, fragment), leader, base, members, owners)


def check_base(base: Base) -> None:
    """Raises ValueError unless its form is right."""
    ids_of(list(base.electors))
    if len(base.digest) != 32 or type(base.since) is not int or not -1 <= base.since < MAX_ROUND:
        raise ValueError("base")
    if (base.since < 0) != (not base.electors):
        raise ValueError("electors")


def ids_of(texts: object) -> tuple[PeerId, ...]:
    """A list of peer ids: ascending, each once, not too many. Raises ValueError."""
    if not isinstance(texts, list) or len(texts) > MAX_MEMBERS:
        raise ValueError("ids")
    if not all(isinstance(t, str) and 0 < len(t) <= _MAX_ID and t.isascii() and t.isprintable() for t in texts):
        raise ValueError("ids")
    if any(one >= other for one, other in itertools.pairwise(texts)):
        raise ValueError("order")
    return tuple(PeerId(text) for text in texts)


def leaders(run_id: RunId, key: RoundKey, peers: Iterable[PeerId]) -> list[PeerId]:
    """The peers in the order in which they are asked to lead. Keyed by the run, so that ids cannot be prepared for a
    run that is not written yet."""
    begun = hashlib.blake2b(f"lead/{key.round}/{key.fragment}/".encode(), digest_size=16, key=run_id[:32])

    def score(peer: PeerId) -> tuple[bytes, PeerId]:
        hashed = begun.copy()
        hashed.update(peer.encode())
        return hashed.digest(), peer

    return sorted(set(peers), key=score)


class Grace:
    """How long a leader with a quorum goes on waiting for the others: twice what they took of late, at least half a
    second and at most a quarter of the round; before anything was seen, that quarter."""

    def __init__(self) -> None:
        self._slack: float | None = None

    def observe(self, slack_s: float) -> None:
        """Between quorum and the last join of a round passed so long."""
        self._slack = slack_s if self._slack is None else 0.5 * (self._slack + slack_s)

    def seconds(self, round_s: float) -> float:
        most = max(LEAST_GRACE_S, round_s / 4)
        return most if self._slack is None else min(max(2 * self._slack, LEAST_GRACE_S), most)


@dataclass(slots=True)
class _Joined:
    at: float
    base: Base
    dialable: bool


class RosterBuilder:
    """A leader's collection of joins for one round, closed to a roster when `closed` returns one."""

    def __init__(
        self,
        run_id: RunId,
        key: RoundKey,
        me: PeerId,
        max_group: int,
        grace_s: float,
        closes_at: float,
        enough: Callable[[Base, Collection[PeerId]], bool],
        known: Callable[[Base], bool],
    ) -> None:
        """`enough`: whether these peers are enough for a roster on this base. `known`: whether this peer remembers the
        roster that made this base."""
        self.run_id, self.key, self.me, self.max_group = run_id, key, me, max_group
        self.grace_s, self.closes_at = grace_s, closes_at
        self.enough, self.known = enough, known
        self._joined: dict[PeerId, _Joined] = {}
        self._quorum_at: float | None = None

    def on_join(self, peer: PeerId, join: Join, now: float) -> None:
        """A peer asks to be in; asking again changes nothing."""
        if peer not in self._joined and len(self._joined) < 4 * MAX_MEMBERS:
            self._joined[peer] = _Joined(now, join.base, join.dialable)
        if self._winner() is None:  # who has just come may have a later state
            self._quorum_at = None
        elif self._quorum_at is None:
            self._quorum_at = now

    def closed(self, live: Collection[PeerId], now: float) -> Roster | None:
        """The roster, once it is to be closed: everybody live has joined, or there is a quorum and its grace is over,
        or the window is. `live`: all training peers we see."""
        if self._quorum_at is None:
            return None
        whole = self._joined.keys() >= set(live)
        if not whole and now < min(self._quorum_at + self.grace_s, self.closes_at):
            return None
        return self._winner()

    def hopeless(self, live: Collection[PeerId], now: float) -> bool:
        """There will be no quorum on any base: the window is over, or everybody has joined."""
        return self._quorum_at is None and (now >= self.closes_at or self._joined.keys() >= set(live))

    def rally(self) -> Roster | None:
        """When enough have come, but split over several bases (each missed other shards of a round): a roster too small
        for a result, by which the others learn whose state to fetch. The latest base; then the one that most have. When
        members of a larger one will not contribute for the sake of a later state, that state."""
        joined, by_mark = tuple(self._joined), self._by_mark()
        bases = {mark: self._joined[peers[0]].base for mark, peers in by_mark.items()}
        founded = any(base.electors for base in bases.values())
        fit = [mark for mark, base in bases.items() if (base.electors or not founded) and self.enough(base, joined)]
        if len(bases) < 2 or not fit:
            return None
        gone_to = {later for mark in by_mark for later in bases if self._left(bases[mark], by_mark[mark], bases[later])}
        fit = [mark for mark in fit if mark in gone_to] or fit
        mark = min(fit, key=lambda mark: (-bases[mark].since, -len(by_mark[mark]), mark))
        return self._roster(bases[mark], by_mark[mark][:MAX_MEMBERS])

    def _by_mark(self) -> dict[bytes, list[PeerId]]:
        by_mark: dict[bytes, list[PeerId]] = {}
        for peer, joined in self._joined.items():
            by_mark.setdefault(joined.base.mark(), []).append(peer)
        return by_mark

    def next_at(self) -> float:
        """When to look again although nobody joins."""
        return self.closes_at if self._quorum_at is None else min(self._quorum_at + self.grace_s, self.closes_at)

    def slack(self, now: float) -> float | None:
        """Since the quorum; None: there is none yet."""
        return None if self._quorum_at is None else now - self._quorum_at

    @property
    def joined(self) -> int:
        return len(self._joined)

    def has(self, peer: PeerId) -> bool:
        return peer in self._joined

    def last_slack(self) -> float:
        """Between the quorum and the last join."""
        assert self._quorum_at is not None
        return max(0.0, max(joined.at for joined in self._joined.values()) - self._quorum_at)

    def _winner(self) -> Roster | None:
        """On the base that most have, of those that enough have; then the later one, then ours, then the smaller mark.
        One without electors counts only while nobody names any: newcomers may be more, and know less."""
        by_mark = self._by_mark()
        bases = [self._joined[peers[0]].base for peers in by_mark.values()]
        own = self._joined[self.me].base.mark() if self.me in self._joined else b""
        founded = any(joined.base.electors for joined in self._joined.values())
        best: tuple[tuple[int, int, bool, bytes], Base, list[PeerId]] | None = None
        for mark, peers in by_mark.items():
            base, members = self._joined[peers[0]].base, peers[: min(self.max_group, MAX_MEMBERS)]
            if (founded and not base.electors) or not self.enough(base, members):
                continue
            if any(self._left(base, members, later) for later in bases):
                continue
            rank = (-len(peers), -base.since, mark != own, mark)
            if best is None or rank < best[0]:
                best = rank, base, members
        return None if best is None else self._roster(best[1], best[2])

    def _left(self, base: Base, members: Collection[PeerId], later: Base) -> bool:
        """Whether too few of these members will contribute to a result on this base: some were in the roster that made
        a later state, and would have to be more than half of it (`peer.protocol.group.quorum`, 2). Without this a group
        could wait for rounds on end for results of a state that others have left. Only of a roster that we remember:
        else whoever comes with an invented state could keep the others from theirs."""
        theirs = set(later.electors).intersection(members)
        if later.since <= base.since or not self.known(later) or 2 * len(theirs) > len(later.electors):
            return False
        return self.enough(base, members) and not self.enough(base, [peer for peer in members if peer not in theirs])

    def _roster(self, base: Base, members: list[PeerId]) -> Roster | None:
        owners = tuple(sorted(peer for peer in members if self._joined[peer].dialable))
        if not owners:
            return None
        return Roster(self.run_id, self.key, self.me, base, tuple(sorted(members)), owners)
