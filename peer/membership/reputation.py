"""The offences of other peers, in one place: each lowers the standing of its peer, is journaled, and is listed in `peer
status`. The server (through `peer.ports.reputation.CallerReputation`), the exchanges and the matchmaker use it to
decide which peers to refuse.

So that a flood of offences cannot fill the journal, it gets at most one line for the same caller and code in `QUIET_S`,
and at most `LINES` for all callers. Offences without a line are counted in the next line.

It also holds the proven peers, which survive a restart if there is a file for them, and the peers that are the last
choice as partners. Standing and last choices do not survive a restart."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass
from typing import Any

from peer.codes import Code
from peer.membership.proven_file import ProvenFile
from peer.observe import events
from peer.observe.status.value import DeclinedCall, ReputationStatus, ShunnedPeer
from peer.ports.clock import Clock
from peer.protocol.messages import PeerId
from peer.protocol.pair.probe_verdict import LastChoices
from peer.protocol.pair.proven import ProvenPeers
from peer.protocol.pair.stranger_budget import StrangerBudget
from peer.protocol.policy.reputation import OUT_OF_FAVOUR, ReputationScore
from peer.protocol.token_bucket import Rate, TokenBuckets
from peer.signed_record import InvalidRecord

QUIET_S = 60.0
LINES = Rate(0.5, 60.0)
MAX_REMEMBERED = 512
SHOWN = 20


@dataclass(frozen=True, slots=True)
class RefusedCaller:
    """One refusal as `peer status` shows it."""

    at: float
    caller: str
    """Peer id, or the address of a caller that has not proved its key."""
    code: Code
    reason: str


class Reputation:
    """The standing of all other peers: records their offences, excludes offenders for a time, and journals refusals.

    `now`: run time, seconds since the epoch. `emit`: journals an event."""

    def __init__(
        self,
        now: Callable[[], float],
        emit: Callable[[events.Event], None],
        proven_file: ProvenFile | None = None,
    ) -> None:
        """`proven_file`: keeps the proven peers across restarts; None: they are kept in memory."""
        self._now = now
        self._emit = emit
        self._proven_file = proven_file
        self.proven = ProvenPeers() if proven_file is None else proven_file.peers
        self.last_choices = LastChoices()
        self._left_out = 0
        self._invited: Container[PeerId] = ()
        self._scores = ReputationScore()
        self.stranger_budget = StrangerBudget(None)
        self._why: OrderedDict[PeerId, str] = OrderedDict()
        self._last: deque[RefusedCaller] = deque(maxlen=SHOWN)
        self._counts: Counter[Code] = Counter()
        self._written: OrderedDict[tuple[str, Code], tuple[float, int]] = OrderedDict()
        self._lines: TokenBuckets[str] = TokenBuckets(LINES)

    async def save_periodically(self, clock: Clock) -> None:
        """Save the proven peers from time to time, until cancelled. Returns at once without a file."""
        if self._proven_file is not None:
            await self._proven_file.run(clock)

    def limit_strangers(self, stranger_budget: StrangerBudget, invited: Container[PeerId] = ()) -> None:
        """Use this stranger budget from now on; its size follows from the run's manifest. Proven peers do not count as
        strangers. `invited`: the peers that have shown an invitation."""
        self.stranger_budget = stranger_budget
        self._invited = invited
        for peer in self.proven:
            stranger_budget.mark_known(peer)

    def penalize(self, peer: PeerId, code: Code, reason: str) -> None:
        """Record an offence of a peer that has proved its key."""
        now = self._now()
        score = self._scores.offend(peer, code, now)
        self.stranger_budget.offended(peer)
        if score > OUT_OF_FAVOUR:
            self.proven.revoke(peer)
        self._record(now, peer, code, reason)
        _remember(self._why, peer, reason)
        if times := self._times_to_write(peer, code, now):
            out_s = round(self._scores.out_for_s(peer, now), 1)
            self._emit(
                events.StandingLowered(
                    peer=peer, code=code, reason=reason, score=round(score, 3), out_s=out_s, times=times
                )
            )

    def refused(self, address: str, code: Code, reason: str) -> None:
        """Record the refusal of a caller that has not proved its key."""
        now = self._now()
        self._record(now, address, code, reason)
        if times := self._times_to_write(address, code, now):
            self._emit(events.CallerRefused(caller=address, code=code, reason=reason, times=times))

    def bad_record(self, bad: InvalidRecord) -> None:
        """Record an invalid record in the directory, whose author is not known."""
        self.refused("directory", Code.RECORD, f"a record in the directory: {bad}")

    def out_for_s(self, peer: PeerId) -> float:
        """Return the seconds until the peer is in favour again; 0: it is."""
        return self._scores.out_for_s(peer, self._now())

    def acceptable(self, peers: Iterable[PeerId]) -> list[PeerId]:
        """Return the peers that are in favour, in the same order; without strangers while the stranger budget is used
        up."""
        now = self._now()
        out, patient = self._scores.out_of_favour(now), self.stranger_budget.with_strangers(now) != 0.0
        if patient and not out:
            return list(peers)
        return [p for p in peers if p not in out and (patient or self.stranger_budget.max_wait(p, now) != 0.0)]

    def unknown(self, peers: Iterable[PeerId]) -> list[PeerId]:
        """Return the peers that are neither proven nor invited."""
        return [peer for peer in peers if peer not in self.proven and peer not in self._invited]

    def trusts(self, peer: PeerId) -> bool:
        """Return whether the peer is proven or invited."""
        return not self.unknown([peer])

    def unacceptable_reason(self, peers: Collection[PeerId]) -> str:
        """Return why some of these peers are not `acceptable`, as text for a person; empty if all are."""
        out, left = self._scores.out_of_favour(self._now()), set(self.acceptable(peers))
        ousted = sum(peer in out for peer in peers)
        strange = sum(peer not in left and peer not in out for peer in peers)
        reasons = [f"{ousted} out of favour"] if ousted else []
        if strange:
            reasons.append(f"{strange} never exchanged with us, and others like that held up our trainer lately")
        return ", ".join(reasons)

    def stranger_budget_spent(self, peer: PeerId) -> bool:
        """Return whether the peer is a stranger and the stranger budget is used up."""
        return self.stranger_budget.max_wait(peer, self._now()) == 0.0

    def is_stranger(self, peer: PeerId) -> bool:
        """Return whether our trainer waits for this peer only for a bounded time."""
        return self.stranger_budget.max_wait(peer, self._now()) is not None

    def held_up(self, peer: PeerId, seconds: float) -> None:
        """Charge the stranger budget with the seconds that our trainer waited for a failed exchange, if the peer is a
        stranger."""
        if self.is_stranger(peer):
            self.stranger_budget.charge(seconds, self._now())

    def is_proven(self, peer: PeerId) -> bool:
        """Return whether the peer is proven, so that strangers cannot displace it."""
        return peer in self.proven

    def exclusion_reason(self, peer: PeerId) -> str:
        """Return why this peer is refused, as text for that peer; empty while it is in favour."""
        left = self.out_for_s(peer)
        return f"out of favour here for {left:.0f} s more: {self._why.get(peer, 'earlier offences')}" if left else ""

    def searched(self, *, left_out: int) -> None:
        """Record how many strangers the latest search left out because of the quotas of their address blocks."""
        self._left_out = left_out

    def strangers(self) -> tuple[int, int]:
        """Return the number of proven peers, and of strangers that the latest search left out, for `peer status`."""
        return len(list(self.proven)), self._left_out

    def report(self) -> ReputationStatus:
        """Return the refusals and the peers that are out of favour, for `peer status`."""
        now = self._now()
        out = self._scores.out_of_favour(now)
        return ReputationStatus(
            refusal_counts={str(code): count for code, count in self._counts.items()},
            out_of_favour=tuple(
                ShunnedPeer(peer, round(left), self._why.get(peer, "")) for peer, left in list(out.items())[:SHOWN]
            ),
            refusals=tuple(
                DeclinedCall(round(now - r.at, 1), r.caller, r.code, r.reason) for r in reversed(self._last)
            ),
        )

    def _record(self, now: float, caller: str, code: Code, reason: str) -> None:
        self._counts[code] += 1
        last = self._last[-1] if self._last else None
        if last is not None and (last.caller, last.code, last.reason) == (caller, code, reason):
            self._last.pop()  # a repeated refusal is listed once
        self._last.append(RefusedCaller(now, caller, code, reason))

    def _times_to_write(self, caller: str, code: Code, now: float) -> int:
        """Return how many offences the journal line to write now has to count: this one, and earlier ones without a
        line. 0: write no line."""
        since, unwritten = self._written.get((caller, code), (-QUIET_S, 0))
        if now - since < QUIET_S or self._lines.take("", now) > 0:
            _remember(self._written, (caller, code), (since, unwritten + 1))
            return 0
        _remember(self._written, (caller, code), (now, 0))
        return unwritten + 1


def _remember(table: OrderedDict[Any, Any], key: object, value: object) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > MAX_REMEMBERED:
        table.popitem(last=False)
