"""A round of a group: the order of its leaders, the leader's collection of joins, and the roster that it signs. The
module is pure: the leader passes joins and the time, and polls whether the roster is closed.

Every peer sorts the peers it sees by a keyed hash of (run, round, fragment, id) and asks the first one to lead. If that
one does not answer, it asks the next. So two leaders may be active in one round. `peer.protocol.group.quorum` explains
why at most one of their rosters gives a result."""

from __future__ import annotations

import enum
import hashlib
import itertools
import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from peer.codes import Code
from peer.errors import BadPayload
from peer.protocol.group.quorum import Base
from peer.protocol.group.receipts import NO_VOUCHERS, Vouchers
from peer.protocol.messages import MAX_ROUND, PeerId, Reach, RoundKey, RunId

ROSTER_DOMAIN = b"peer roster v1"
MAX_MEMBERS = 64
"""Maximum members of a roster, whatever the manifest allows, so that readers can bound their memory."""
MAX_ROSTER_BYTES = 16 * 1024
"""Larger encodings of rosters are not decoded."""
LEAST_GRACE_S = 0.5
"""Minimum seconds that a leader with a quorum waits for further members."""
_MAX_ID = 64


@dataclass(frozen=True, slots=True)
class Join:
    """A member's request to take part in a round, starting from a base."""

    key: RoundKey
    base: Base
    reach: Reach = Reach.DIRECT
    """How others can call the member. A relayed member whose path is fast enough to own a shard sends DIRECT."""
    wait_s: float = 0.0
    """Seconds for which the leader may hold the call before it answers WAIT."""
    vouchers: Vouchers = NO_VOUCHERS
    """Receipts of the owners that last sent this peer results of this fragment."""


class JoinStatus(enum.StrEnum):
    """A leader's answer to a join."""

    ROSTER = "roster"
    """The roster is closed and in the reply. The caller may or may not be a member."""
    WAIT = "wait"
    """The roster is not closed yet: the caller asks again at once."""
    NONE = "none"
    """This peer makes no roster for the caller. `reason` says why."""


@dataclass(frozen=True, slots=True)
class SignedRoster:
    """A roster as it is sent: its exact bytes, and the leader's signature over them (`ROSTER_DOMAIN`)."""

    raw: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class JoinReply:
    """The answer to a join."""

    status: JoinStatus
    roster: SignedRoster | None = None
    collecting: bool = False
    """With WAIT: whether this peer already leads the round."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Roster:
    """The members of a round's average, and the base from which they start."""

    run_id: RunId
    key: RoundKey
    leader: PeerId
    """The peer that signed the roster. It need not be a member: its own base may differ."""
    base: Base
    members: tuple[PeerId, ...]
    """Sorted."""
    owners: tuple[PeerId, ...]
    """The members that own the shards, sorted: those that are easiest to call."""

    def to_bytes(self) -> bytes:
        """Return the bytes that are signed. The encoding is unique."""
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
        """Return the BLAKE3 digest of `to_bytes`, by which contributions refer to their roster."""
        return blake3(self.to_bytes()).digest()


def parse_roster(raw: bytes) -> Roster:
    """Decode a roster and check its form, but not its signature. Raises BadPayload (`roster`)."""
    if len(raw) > MAX_ROSTER_BYTES:
        raise BadPayload(Code.ROSTER, f"a roster of {len(raw)} bytes, at most {MAX_ROSTER_BYTES} are read")
    try:
        body = json.loads(raw)
        roster = _roster_of(body)
        same = roster.to_bytes() == raw
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadPayload(Code.ROSTER, "the roster cannot be read") from None
    if not same:
        raise BadPayload(Code.ROSTER, "the roster is not spelled as rosters are")
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
    """Check the form of a base. Raises ValueError."""
    ids_of(list(base.electors))
    if len(base.digest) != 32 or type(base.since) is not int or not -1 <= base.since < MAX_ROUND:
        raise ValueError("base")
    if (base.since < 0) != (not base.electors):
        raise ValueError("electors")


def ids_of(texts: object) -> tuple[PeerId, ...]:
    """Convert a list to peer ids. Raises ValueError unless they are strictly ascending and at most `MAX_MEMBERS`."""
    if not isinstance(texts, list) or len(texts) > MAX_MEMBERS:
        raise ValueError("ids")
    if not all(isinstance(t, str) and 0 < len(t) <= _MAX_ID and t.isascii() and t.isprintable() for t in texts):
        raise ValueError("ids")
    if any(one >= other for one, other in itertools.pairwise(texts)):
        raise ValueError("order")
    return tuple(PeerId(text) for text in texts)


def leaders(run_id: RunId, key: RoundKey, peers: Iterable[PeerId]) -> list[PeerId]:
    """Return the peers in the order in which they are asked to lead. The hash is keyed by the run id, so that nobody
    can prepare peer ids before the manifest is written."""
    begun = hashlib.blake2b(f"lead/{key.round}/{key.fragment}/".encode(), digest_size=16, key=run_id[:32])

    def score(peer: PeerId) -> tuple[bytes, PeerId]:
        hashed = begun.copy()
        hashed.update(peer.encode())
        return hashed.digest(), peer

    return sorted(set(peers), key=score)


class Grace:
    """Computes how long a leader with a quorum waits for further members.

    The grace is the larger of twice the largest recent slack (seconds between quorum and last join) and two inner
    steps. It is at least `LEAST_GRACE_S` and at most a quarter of the round. Before the first slack is observed, it is
    that quarter.

    Members join at the end of an inner step, so slacks vary between zero and one step. A grace of the mean slack would
    exclude members whose step ends late, and waste their round's work. The leader's own step time counts too, because a
    leader observes few rounds."""

    KEPT = 0.95
    """Decay of the largest slack at each smaller observation."""
    TIMES = 2.0
    """Factor of slack and step time."""

    def __init__(self) -> None:
        self._slack: float | None = None
        self._step_s = 0.0

    def expect_steps(self, step_s: float) -> None:
        """Set the seconds of an inner step of this peer."""
        self._step_s = step_s

    def observe(self, slack_s: float) -> None:
        """Record the slack of a round: the seconds between the quorum and the last join."""
        self._slack = slack_s if self._slack is None else max(slack_s, self.KEPT * self._slack)

    def seconds(self, round_s: float) -> float:
        """Return the grace, in seconds, for rounds of `round_s` seconds."""
        most = max(LEAST_GRACE_S, round_s / 4)
        if self._slack is None:
            return most
        return min(max(self.TIMES * self._slack, self.TIMES * self._step_s, LEAST_GRACE_S), most)


@dataclass(slots=True)
class _Joined:
    at: float
    base: Base
    reach: Reach


class RosterBuilder:
    """A leader's collection of joins for one round. `closed` returns the roster once it is complete."""

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
        """`enough`: whether these peers are enough for a roster on this base. `known`: whether this peer itself
        accepted the roster that made this base."""
        self.run_id, self.key, self.me, self.max_group = run_id, key, me, max_group
        self.grace_s, self.closes_at = grace_s, closes_at
        self.enough, self.known = enough, known
        self._joined: dict[PeerId, _Joined] = {}
        self._quorum_at: float | None = None

    def on_join(self, peer: PeerId, join: Join, now: float) -> None:
        """Add a peer's join. A second join of the same peer changes nothing."""
        if peer not in self._joined and len(self._joined) < 4 * MAX_MEMBERS:
            self._joined[peer] = _Joined(now, join.base, join.reach)
        if self._winner() is None:  # a quorum can be lost again: the new member may have a later state
            self._quorum_at = None
        elif self._quorum_at is None:
            self._quorum_at = now

    def closed(self, live: Collection[PeerId], now: float) -> Roster | None:
        """Return the roster if it is closed, else None. It closes when all live peers have joined, or when the grace
        after the quorum or the window has passed. `live`: all training peers that this peer sees."""
        if self._quorum_at is None:
            return None
        whole = self._joined.keys() >= set(live)
        if not whole and now < min(self._quorum_at + self.grace_s, self.closes_at):
            return None
        return self._winner()

    def hopeless(self, live: Collection[PeerId], now: float) -> bool:
        """Return whether no base can reach a quorum any more: the window has passed, or all live peers have joined."""
        return self._quorum_at is None and (now >= self.closes_at or self._joined.keys() >= set(live))

    def rally(self) -> Roster | None:
        """Return a roster too small for a result, from which other members learn whose state to fetch. None: not
        needed.

        It is made when enough peers have joined but have different bases, for example because each missed other shards
        of a round. The roster is on the latest base; if several are equally late, on the one that most members have. If
        the members of some base will not contribute because they know a later state, the roster is on that state."""
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
        """Return when to call `closed` again if no further join arrives."""
        return self.closes_at if self._quorum_at is None else min(self._quorum_at + self.grace_s, self.closes_at)

    def slack(self, now: float) -> float | None:
        """Return the seconds since the quorum. None: no quorum yet."""
        return None if self._quorum_at is None else now - self._quorum_at

    @property
    def joined(self) -> int:
        return len(self._joined)

    def has(self, peer: PeerId) -> bool:
        return peer in self._joined

    def last_slack(self) -> float:
        """Return the seconds between the quorum and the last join."""
        assert self._quorum_at is not None
        return max(0.0, max(joined.at for joined in self._joined.values()) - self._quorum_at)

    def _winner(self) -> Roster | None:
        """Return the roster on the best base among those that enough members have: the base of most members. Ties go to
        the later base, then to ours, then to the smaller mark.

        A base without electors counts only while no member names electors: newcomers may be the majority, but their
        base is the oldest."""
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
        """Return whether too few of these members will contribute to a result on this base, because some know a later
        state.

        A member that was in the roster of a later state contributes here only if more than half of that roster is here
        too (`peer.protocol.group.quorum`, case 2). Without this check a group could wait for many rounds for results on
        a base that members have left. Only rosters that this peer itself accepted count: an invented later state must
        not keep members from their round."""
        theirs = set(later.electors).intersection(members)
        if later.since <= base.since or not self.known(later) or 2 * len(theirs) > len(later.electors):
            return False
        return self.enough(base, members) and not self.enough(base, [peer for peer in members if peer not in theirs])

    def _roster(self, base: Base, members: list[PeerId]) -> Roster | None:
        best = max((self._joined[peer].reach for peer in members), default=Reach.NONE)
        if best is Reach.NONE:
            return None
        owners = tuple(sorted(peer for peer in members if self._joined[peer].reach is best))
        return Roster(self.run_id, self.key, self.me, base, tuple(sorted(members)), owners)
