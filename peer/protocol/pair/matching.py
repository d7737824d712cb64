"""Random pairs by offers, without a coordinator. NoLoCo draws pairs from a shared permutation, for which all peers need
the same view of the swarm. Offers do not need that.

Each peer can compute the score of any two peers for a (round, fragment). It sends an offer to its live candidate with
the best score. Two peers that hold each other's offer are locked. This is greedy matching on shared edge weights (Preis
1999, Hoepman 2004): the best free edge is always mutual, so the matching terminates although views differ.

Two peers that cannot be called cannot pair, and a relay makes a closed peer callable. So an edge between a callable and
an uncallable peer has priority over other edges. Otherwise two callable peers that pair could leave two uncallable
peers without a partner.

Edges between peers that are proven to each other have priority over all others (`peer.protocol.pair.proven`). Each peer
starts with its own opinion, which offers and answers transmit. A peer that receives `not proven` ranks the sender as a
stranger for the rest of the round. So two peers that wait for each other agree on the weight of their edge, and peers
cannot wait for each other in a circle.

A candidate may be a last choice. The peer asks it only when all other candidates are out, and answers its offers TAKEN
until then. So no candidate waits for this peer in vain, and peers need not agree on their last choices.

Locks are consistent. A peer has one offer in flight at a time, and until the answer arrives it locks only with the peer
to which it sent that offer. So a peer that answers LOCKED knows that the other side accepts the lock. After a lost
answer the offer is repeated, and the answer is the same.

A lock ends when one side sits out the round, for example because it pauses. It sends `withdraw`, and the other side
continues its search.

One silent candidate must not block the search. An offer whose answer is late no longer counts as in flight, and the
next candidate is asked. A late LOCKED is kept until the offer in flight is answered. If that one locks, the late peer
gets `withdraw`, which ends a lock that its other side did not accept. Candidates that did not answer lately rank
last."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Container, Iterable

from peer.protocol.messages import Answer, Offer, PeerId, Reach, RoundKey, RunId, Send, Verdict
from peer.protocol.pair.candidate_reach import CandidateReach
from peer.protocol.pair.scores import RoundScores, initiates

AWAIT_S = 1.5
"""Seconds to wait for the call of a candidate that cannot be dialled. After that it ranks behind all other
candidates."""
MAX_NOTICES = 32
"""Maximum peers that an uncallable peer notifies of its lock, because they would otherwise wait for its call."""
HELD_BACK = "our last choice"
LATE = "not answering yet"
RELEASED = "let go of us"
MOST_OUT = 3
"""Maximum number of offers with a late answer. While their number is `MOST_OUT`, no further candidate is asked."""
POLL_S = 0.5
"""Interval for repeating an offer that was answered HELD. The repetition detects that the other peer died, and repairs
a lost withdrawal."""


Peers = Container[PeerId]


class Matching:
    """One peer's part in the matching of one (round, fragment).

    The caller reports events (`on_...`) and then sends the offers that `actions` returns. `Matching` has no time limit
    of its own for an offer: the caller has to report `on_answer` or `on_failed` within a bounded time. `now`: seconds
    of any one clock."""

    def __init__(
        self,
        run_id: RunId,
        key: RoundKey,
        me: PeerId,
        closes_at: float = float("inf"),
        *,
        reach: Reach = Reach.DIRECT,
        await_s: float = AWAIT_S,
        last_choices: Callable[[], Container[str]] = frozenset,
        unanswering: Callable[[], Peers] = frozenset,
    ) -> None:
        """`closes_at`: when the pairing window closes, in the time of `now`. `reach`: how others can call this peer.
        `await_s`: seconds to wait for candidates that cannot be called. `last_choices`: returns the candidates that
        are asked only after all others. `unanswering`: returns those that did not answer lately."""
        self.run_id, self.key, self.me = run_id, key, me
        self.reach = reach
        self._last_choices = last_choices
        self._unanswering = unanswering
        self._held_back: set[PeerId] = set()
        """Candidates of last choice while there are others. Each of them is also in `_gone`."""
        self._closes_at, self._await_s = closes_at, await_s
        self.locked: PeerId | None = None
        self.we_dial = False
        """Whether this peer dials its locked partner."""
        self.closed = False
        self._candidates: dict[PeerId, int] = {}
        """Score of each candidate with this peer."""
        self._gone: dict[PeerId, str] = {}
        """Candidates that are out for this round, with the reason: taken, refused, failed."""
        self._reaches = CandidateReach()
        self._proven: set[PeerId] = set()
        """Candidates that are proven to this peer and did not answer that this peer is not proven to them."""
        self._called_at: dict[PeerId, float] = {}
        """Time of the latest offer of each candidate that cannot be called."""
        self._awaited_since: float | None = None
        """When a candidate that cannot be called first became the best one."""
        self._silent: set[PeerId] = set()
        """Candidates that rank behind all others: they did not call in time, or did not answer lately."""
        self._target: PeerId | None = None
        self._in_flight: PeerId | None = None
        self._late: set[PeerId] = set()
        """Candidates whose answer to our offer is late. Each is also in `_gone`, unless it has called since."""
        self._promised: set[PeerId] = set()
        """Candidates whose late answer was LOCKED. They are kept until the offer in flight is answered."""
        self.promising: set[PeerId] = set()
        """Candidates that have shown in this round that they may exchange with us."""
        self._retry_at = 0.0
        self._waiting: set[PeerId] = set()
        """Peers whose offers were answered HELD. They are notified when this peer locks with another one."""
        self._outbox: list[Send] = []
        self._ranking: list[PeerId] | None = None
        """Candidates sorted by weight, best last. Candidates that are out or silent are removed when they are reached.
        None: has to be computed again."""

    def set_own_reach(self, reach: Reach) -> None:
        """Set how others can call this peer when the round opens. No effect once candidates are ranked."""
        if not self._candidates:
            self.reach = reach

    def extend(self, closes_at: float) -> None:
        """Move the end of the window. Candidates that are ready only later are out."""
        self._closes_at = closes_at

    def add(self, peers: Iterable[PeerId], uncallable: Peers = (), proven: Peers = (), relayed: Peers = ()) -> None:
        """Add candidates from the directory. Known ones keep their state.

        `uncallable`: those that have to call us. `proven`: those whose edges have priority. `relayed`: those that can
        be called through a relay only."""
        known = self._candidates
        new = [peer for peer in peers if peer not in known and peer != self.me]
        if not new:
            return
        known |= RoundScores(self.run_id, self.key).of(new, self.me)
        for peer in filter(relayed.__contains__, new):
            self._reaches.set(peer, Reach.RELAYED)
        for peer in filter(uncallable.__contains__, new):
            self._reaches.set(peer, Reach.NONE)
            if not self.reach:
                self._gone[peer] = "not to be called, and neither are we"
        self._proven.update(filter(proven.__contains__, new))
        unanswering, last_choices = self._unanswering().__contains__, self._last_choices().__contains__
        self._silent.update(peer for peer in filter(unanswering, new) if peer not in self._reaches.callers)
        for peer in filter(last_choices, new):
            self._held_back.add(peer)
            self._gone.setdefault(peer, HELD_BACK)
        self._ranking = None

    def on_offer(self, sender: PeerId, now: float, reach: Reach = Reach.DIRECT, proven: bool = False) -> Answer:
        """Answer another peer's offer. The sender is alive, so it becomes a candidate even if it was out. `proven`:
        whether the sender counts this peer among its proven peers (`Offer.proven`)."""
        if self.locked is not None:
            return Answer(Verdict.LOCKED if self.locked == sender else Verdict.TAKEN)
        if self.closed:
            return Answer(Verdict.TAKEN, reason="this round is over here")
        if sender == self.me:
            return Answer(Verdict.REFUSED, reason="a peer does not pair with itself")
        if sender not in self._candidates:
            self.add([sender])
        if not self.reach and not reach:
            return Answer(Verdict.REFUSED, reason="neither of us can be called")
        if sender in self._promised:
            return Answer(Verdict.LATER, eta_s=POLL_S, reason="another is asked")
        if self._is_held_back(sender):
            return Answer(Verdict.TAKEN, reason="others are asked first in this round")
        self._readmit(sender, reach)
        self._observe_proven(sender, proven)
        self.promising.add(sender)
        if not reach:
            self._called_at[sender] = now
        if self._in_flight == sender or (self._in_flight is None and self._best() == sender):
            self._lock(sender)
            return Answer(Verdict.LOCKED)
        self._waiting.add(sender)
        return Answer(Verdict.HELD, proven=sender in self._proven)

    def on_withdraw(self, sender: PeerId) -> None:
        """Remove a candidate that is locked with another peer or sits out the round. A lock with it ends."""
        self._waiting.discard(sender)
        self._promised.discard(sender)
        if sender in self._candidates:
            self._gone[sender] = RELEASED if sender == self.locked else "taken"
        self.locked = None if sender == self.locked else self.locked

    def on_late(self, peer: PeerId) -> None:
        """Stop waiting for this answer, and allow `actions` to ask another candidate. The late answer still counts."""
        if self._in_flight != peer:
            return
        self._in_flight = self._target = None
        self._gone[peer] = LATE
        self._late.add(peer)
        self._lock_promised()

    def on_answer(self, peer: PeerId, answer: Answer, now: float) -> None:
        """Process the answer to an offer."""
        self._settle(peer)
        if answer.verdict is Verdict.LOCKED:
            self._on_locked(peer, answer)
        elif answer.verdict is Verdict.LATER and now + answer.eta_s > self._closes_at:
            self._drop(peer, "behind")
        elif answer.verdict in (Verdict.HELD, Verdict.LATER):
            self.promising.add(peer)
            if answer.verdict is Verdict.HELD:
                self._observe_proven(peer, answer.proven)
            wait = POLL_S if answer.verdict is Verdict.HELD else min(max(answer.eta_s, 0.02), POLL_S)
            self._retry_at = now + wait
        else:
            self._drop(peer, answer.verdict.value if not answer.reason else answer.reason)
        self._lock_promised()

    def on_failed(self, peer: PeerId, reason: str) -> None:
        """Remove a peer that did not answer an offer, or a locked partner that was lost. The search continues."""
        self._settle(peer)
        if self.locked == peer:
            self.locked = None
        self._drop(peer, reason)
        self._lock_promised()

    def exclude(self, unwanted: Callable[[PeerId], bool], reason: str) -> int:
        """Remove the unwanted candidates, except a locked one and the one whose offer is in flight. Late answers of
        unwanted candidates are no longer awaited. Return how many were removed."""
        busy = (self.locked, self._in_flight)
        self._late = {peer for peer in self._late if not unwanted(peer)}
        out = [peer for peer in self._free() if peer not in busy and unwanted(peer)]
        for peer in out:
            self._drop(peer, reason)
        return len(out)

    def close(self) -> None:
        """Close the window. From now on all offers are answered TAKEN."""
        self.closed = True
        self._release_waiting()

    def actions(self, now: float) -> list[Send]:
        """Return the offers to send now."""
        sends, self._outbox = self._outbox, []
        if self.locked is None and not self.closed and self._in_flight is None:
            best = self._best_to_ask(now) if len(self._late) < MOST_OUT else None
            if best is not None and best not in self._late and (best != self._target or now >= self._retry_at):
                self._target = self._in_flight = best
                sends.append(Send(best, Offer(self.key, reach=self.reach, proven=best in self._proven)))
        return sends

    def wake_at(self) -> float | None:
        """Return when `actions` may return something new although no event was reported. None: never."""
        if self.locked is not None or self.closed or self._in_flight is not None or len(self._late) >= MOST_OUT:
            return None
        if (best := self._best()) is None or best in self._late:
            return None
        if best not in self._reaches.callers:
            return self._retry_at
        return None if best in self._silent or self._awaited_since is None else self._awaited_until(best)

    @property
    def decision_state(self) -> tuple[PeerId | None, PeerId | None, float | None, bool]:
        """The values on which `actions`, `wake_at`, `locked` and `exhausted` depend. While it is equal, so are their
        results."""
        return self.locked, self._best(), self.wake_at(), bool(self._outbox)

    @property
    def exhausted(self) -> bool:
        """Whether no candidate is left to ask or to wait for."""
        return self.locked is None and self._in_flight is None and not self._late and self._best() is None

    @property
    def has_candidates(self) -> bool:
        """Whether there was any candidate, including those that are out."""
        return bool(self._candidates)

    def needs_relay(self, peer: PeerId) -> bool:
        """Return whether neither this peer nor `peer` can be called at its own address."""
        return self.reach is not Reach.DIRECT and self._reaches.of(peer) is not Reach.DIRECT

    def solo_reason(self) -> str:
        """Return why there is no partner: the four commonest reasons, each with its number of candidates."""
        if not self._candidates:
            return "no other peer is known"
        fates = Counter(self._gone.get(peer, "undecided") for peer in self._candidates)
        return f"{len(self._candidates)} candidates: " + ", ".join(f"{n} {fate}" for fate, n in fates.most_common(4))

    def _free(self) -> Iterable[PeerId]:
        gone = self._gone
        return [peer for peer in self._candidates if peer not in gone] if gone else self._candidates

    def _best(self) -> PeerId | None:
        if self._ranking is None:
            self._ranking = sorted(self._free(), key=self._candidates.__getitem__)
            if self._reaches.callers and self.reach:
                self._ranking.sort(key=self._reaches.callers.__contains__)
            if self._proven:
                self._ranking.sort(key=self._proven.__contains__)
        ranking, gone, silent = self._ranking, self._gone, self._silent
        while ranking and (ranking[-1] in gone or ranking[-1] in silent):
            ranking.pop()
        if ranking:
            return ranking[-1]
        best = max(self._free(), key=self._weight, default=None)
        return self._best() if best is None and self._release_held_back() else best

    def _weight(self, peer: PeerId) -> tuple[bool, int]:
        return peer in self._proven, self._candidates[peer]

    def _is_held_back(self, peer: PeerId) -> bool:
        """Return whether a candidate has to wait until all others are out."""
        if peer in self._held_back:
            self._best()
        return peer in self._held_back

    def _release_held_back(self) -> bool:
        """Admit the candidates of last choice. Return whether there are any. Those that cannot be called stay out:
        their offers were answered TAKEN, so they will not call again."""
        held_back = self._held_back - self._reaches.callers
        back = [peer for peer in held_back if self._gone.get(peer) == HELD_BACK]
        self._held_back.clear()
        for peer in back:
            del self._gone[peer]
        self._ranking = None
        return bool(back)

    def _observe_proven(self, peer: PeerId, proven: bool) -> None:
        """Process another peer's `proven`. Their edge has priority only if both peers are proven to each other."""
        if not proven and peer in self._proven:
            self._proven.discard(peer)
            self._ranking = None

    def _readmit(self, peer: PeerId, reach: Reach) -> None:
        """Make a peer a candidate again, even if it was out or silent."""
        if peer in self._gone or peer in self._silent:
            self._gone.pop(peer, None)
            self._silent.discard(peer)
            self._ranking = None
        self._set_reach(peer, reach)

    def _set_reach(self, peer: PeerId, reach: Reach) -> None:
        if self._reaches.set(peer, reach):
            self._ranking = None

    def _awaited_until(self, caller: PeerId) -> float:
        """Return until when to wait for the call of a candidate that cannot be called. The waits for all such
        candidates begin together. Each offer of a candidate extends its own wait, because after HELD it calls again."""
        assert self._awaited_since is not None
        return max(self._awaited_since, self._called_at.get(caller, 0.0)) + self._await_s

    def _best_to_ask(self, now: float) -> PeerId | None:
        """Return the best candidate to send an offer to. None: there is no candidate, or the best one cannot be called
        and we wait for its call. The candidate ranks its peers by the same scores, so it should call us, but the wait
        is limited because it may be dead."""
        while (best := self._best()) is not None:
            if best not in self._reaches.callers:
                return best
            self._awaited_since = now if self._awaited_since is None else self._awaited_since
            if best in self._silent or now < self._awaited_until(best):
                return None
            self._silent.add(best)
        return None

    def _drop(self, peer: PeerId, reason: str) -> None:
        self._waiting.discard(peer)
        if peer in self._candidates:
            self._gone[peer] = reason
        self._target = None if self._target == peer else self._target

    def _settle(self, peer: PeerId) -> None:
        """Record that the offer to this peer has ended. A late peer becomes a candidate again."""
        if self._in_flight == peer:
            self._in_flight = None
        if peer in self._late:
            self._late.discard(peer)
            if self._gone.get(peer) == LATE:
                self._readmit(peer, self._reaches.of(peer))

    def _on_locked(self, peer: PeerId, answer: Answer) -> None:
        """Process a LOCKED answer: lock, keep it until the offer in flight is answered, or withdraw from it."""
        if self.locked == peer or (self.closed and self.locked is None):
            return
        self._set_reach(peer, answer.reach)
        if self.locked is not None:
            self._outbox.append(Send(peer, Offer(self.key, withdraw=True)))
            self._drop(peer, "late")
        elif self._in_flight is not None:
            self._promised.add(peer)
            self._drop(peer, "late")
        else:
            self._lock(peer)

    def _lock_promised(self) -> None:
        """Lock with the best peer of `_promised`, once no offer is in flight."""
        if self._promised and self.locked is None and self._in_flight is None and not self.closed:
            self._lock(max(self._promised, key=self._weight))

    def _lock(self, peer: PeerId) -> None:
        self.locked = peer
        self.we_dial = initiates(self.me, peer, self.reach, self._reaches.of(peer))
        self._waiting = (self._waiting | self._promised) - {peer}
        self._promised.clear()
        if not self.reach:
            self._notify_waiting_candidates()
        self._release_waiting()

    def _notify_waiting_candidates(self) -> None:
        """Notify the best callable candidates of the lock. They cannot dial this peer, so they would wait for its call
        in vain."""
        free = [p for p in (*self._free(), *self._held_back) if p not in self._reaches.callers and p != self.locked]
        self._waiting.update(heapq.nlargest(MAX_NOTICES, free, key=self._weight))

    def _release_waiting(self) -> None:
        self._outbox += [Send(peer, Offer(self.key, withdraw=True)) for peer in sorted(self._waiting)]
        self._waiting.clear()
