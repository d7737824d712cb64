"""A round of a group: the order of its leaders, a leader's collection of members, and the roster that it signs. The
module is pure: the leader passes joins and the time, and reads whether the roster is closed.

Every peer orders the peers it sees by a keyed hash of (run, round, fragment, id) and asks the first one to lead. If
that one does not answer, it asks the next. So two leaders may be at work in one round. `peer.protocol.group.quorum`
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

from peer.codes import Code
from peer.errors import BadPayload
from peer.protocol.group.quorum import Base
from peer.protocol.group.receipts import NO_VOUCHERS, Vouchers
from peer.protocol.messages import MAX_ROUND, PeerId, Reach, RoundKey, RunId

ROSTER_DOMAIN = b"peer roster v1"
MAX_MEMBERS = 64
"""Most members of a roster, whatever the manifest allows: a bound for the peers that read it."""
MAX_ROSTER_BYTES = 16 * 1024
"""Bytes of the largest roster that is read."""
LEAST_GRACE_S = 0.5
"""Least seconds that a leader with a quorum waits for further members."""
_MAX_ID = 64


@dataclass(frozen=True, slots=True)
class Join:
    """A member's request: `I take part in this round, from this base.`"""

    key: RoundKey
    base: Base
    reach: Reach = Reach.DIRECT
    """How others can call it. A relayed member says DIRECT when its path is fast enough to own a shard."""
    wait_s: float = 0.0
    """Seconds that the leader may hold the call before it says WAIT."""
    vouchers: Vouchers = NO_VOUCHERS
    """Receipts of the owners that last sent this peer results of this fragment."""


class JoinStatus(enum.StrEnum):
    """A leader's answer to a join."""

    ROSTER = "roster"
    """The roster is closed and in the reply, with or without the caller."""
    WAIT = "wait"
    """The roster is not closed yet: the caller asks again at once."""
    NONE = "none"
    """There will be no roster from here, `reason` says why."""


@dataclass(frozen=True, slots=True)
class SignedRoster:
    """A roster on the wire: its exact bytes, and the leader's signature over them (`ROSTER_DOMAIN`)."""

    raw: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class JoinReply:
    status: JoinStatus
    roster: SignedRoster | None = None
    collecting: bool = False
    """With WAIT: whether this peer leads the round already."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Roster:
    """The members of a round's average, and the base that they build on."""

    run_id: RunId
    key: RoundKey
    leader: PeerId
    """The peer that signed it. It may be no member: its own base may be another one."""
    base: Base
    members: tuple[PeerId, ...]
    """Sorted."""
    owners: tuple[PeerId, ...]
    """The members that own the shards, sorted: those that are easiest to call."""

    def to_bytes(self) -> bytes:
        """Return the bytes that are signed, the one encoding of this roster."""
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
        """BLAKE3 of its bytes: contributions name their roster by it."""
        return blake3(self.to_bytes()).digest()


def parse_roster(raw: bytes) -> Roster:
    """Decode a roster and check its form, not its signature. Raises BadPayload (`roster`)."""
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
    """Read a list of peer ids: ascending, each once, not too many. Raises ValueError."""
    if not isinstance(texts, list) or len(texts) > MAX_MEMBERS:
        raise ValueError("ids")
    if not all(isinstance(t, str) and 0 < len(t) <= _MAX_ID and t.isascii() and t.isprintable() for t in texts):
        raise ValueError("ids")
    if any(one >= other for one, other in itertools.pairwise(texts)):
        raise ValueError("order")
    return tuple(PeerId(text) for text in texts)


def leaders(run_id: RunId, key: RoundKey, peers: Iterable[PeerId]) -> list[PeerId]:
    """Return the peers in the order in which they are asked to lead. The hash is keyed by the run, so that nobody can
    prepare ids for a run that is not written yet."""
    begun = hashlib.blake2b(f"lead/{key.round}/{key.fragment}/".encode(), digest_size=16, key=run_id[:32])

    def score(peer: PeerId) -> tuple[bytes, PeerId]:
        hashed = begun.copy()
        hashed.update(peer.encode())
        return hashed.digest(), peer

    return sorted(set(peers), key=score)


class Grace:
    """The time a leader with a quorum waits for further members: the larger of twice the largest recent slack and two
    inner steps. It is at least half a second and at most a quarter of the round. Until a slack was seen, it is that
    quarter.

    A member joins at the end of its inner step, so slacks lie anywhere between nothing and a step. Their mean would
    leave out a member whose step ends late, and its round's work with it. A leader sees few rounds, so it also goes by
    its own steps."""

    KEPT = 0.95
    """Part of the largest slack that is left of it when the next one was smaller."""
    TIMES = 2.0

    def __init__(self) -> None:
        self._slack: float | None = None
        self._step_s = 0.0

    def expect_steps(self, step_s: float) -> None:
        """Know that an inner step takes so many seconds here."""
        self._step_s = step_s

    def observe(self, slack_s: float) -> None:
        """Note the seconds between the quorum and the last join of a round."""
        self._slack = slack_s if self._slack is None else max(slack_s, self.KEPT * self._slack)

    def seconds(self, round_s: float) -> float:
        """Return the grace of a round of so many seconds."""
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
        """Take a peer's join. Joining again changes nothing."""
        if peer not in self._joined and len(self._joined) < 4 * MAX_MEMBERS:
            self._joined[peer] = _Joined(now, join.base, join.reach)
        if self._winner() is None:  # who has just come may have a later state
            self._quorum_at = None
        elif self._quorum_at is None:
            self._quorum_at = now

    def closed(self, live: Collection[PeerId], now: float) -> Roster | None:
        """Return the roster once it is closed: all live peers have joined, or a quorum's grace or the window is over.
        `live`: all training peers that this peer sees."""
        if self._quorum_at is None:
            return None
        whole = self._joined.keys() >= set(live)
        if not whole and now < min(self._quorum_at + self.grace_s, self.closes_at):
            return None
        return self._winner()

    def hopeless(self, live: Collection[PeerId], now: float) -> bool:
        """Whether no base can reach a quorum: the window is over, or all live peers have joined."""
        return self._quorum_at is None and (now >= self.closes_at or self._joined.keys() >= set(live))

    def rally(self) -> Roster | None:
        """Return a roster too small for a result, by which other members learn whose state to fetch. It is made when
        enough have joined, but split over several bases, as after each missed other shards of a round.

        The roster names the latest base, and of these the one that most have. If members of a larger one will not
        contribute for the sake of a later state, it names that state."""
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
        """Return when to look again although nobody joins."""
        return self.closes_at if self._quorum_at is None else min(self._quorum_at + self.grace_s, self.closes_at)

    def slack(self, now: float) -> float | None:
        """Return the seconds since the quorum. None: there is none yet."""
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
        """Return the roster on the base that most have, of the bases that enough have. Ties go to the later base, then
        to ours, then to the smaller mark. A base without electors counts only while no member names any: newcomers may
        be more, and know less."""
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
        """Whether too few of these members will contribute to a result on this base. Some were in the roster that made
        a later state, and would have to be more than half of it (`peer.protocol.group.quorum`, 2). Without this check a
        group could wait for many rounds for results of a state that members have left. Only a remembered roster counts:
        an invented later state must not keep members from theirs."""
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
