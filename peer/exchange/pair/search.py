"""One peer's search for a partner in one (round, fragment): it sends the offers that `peer.protocol.pair.matching`
decides on, passes the answers to it, and keeps its deadlines."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import replace

from peer.aio.events import Signal
from peer.errors import BadPayload, NotDialled, PartnerLost, PartnerRefused
from peer.exchange.pair.context import PairContext
from peer.exchange.pair.hand_over import hand_over_s, withdraw
from peer.protocol.messages import Answer, Offer, PeerId, PeerRecord, Reach, RoundKey, Send, Verdict
from peer.protocol.pair.address_quota import over_quota
from peer.protocol.pair.matching import AWAIT_S, Matching
from peer.protocol.pair.proven import unbiased
from peer.protocol.pair.scores import initiates
from peer.protocol.swarm.rtt import FIRST_S, MOST_S

CONFIRM_S = 1.5
"""Seconds after which a peer whose lock is not confirmed yet may ask again."""
LOOK_S = 1.0
"""Seconds after which a new candidate is noticed at the latest."""
AWAIT_CALLS = 3.0
"""Candidates that can only call us get this many of our usual round trips to do so, at most half of the time until the
round is due."""
LOCKED_S = 60.0
"""Seconds between two looks for candidates while a partner is locked. Losing the partner wakes the search at once."""
NO_ROOM = "no relay has room for the swap"
MOST_ROOMLESS = 3
"""After this many partners for which no relay had room, all candidates that need a relay are given up for the round."""
AGAIN_S = 0.5
"""Seconds until an offer that was lost over a relay is sent again; another relay is chosen meanwhile."""
WORK_LOOK_S = 0.25
"""Seconds between two checks whether our trainer has work to exchange."""
PROMISES_S = 0.5
"""Seconds for which strangers may delay us while our trainer waits. After that they are excluded for the rest of this
round."""


class PartnerSearch:
    """The search for one partner to exchange with, in one round of one fragment.

    Start `run` at the beginning of the round and cancel it at the end. `partner` waits until a partner is locked."""

    def __init__(self, context: PairContext, key: RoundKey, opens_at: float, closes_at: float) -> None:
        self.key = key
        self._context = context
        self._opens_at = opens_at
        await_s = max(AWAIT_S, min(AWAIT_CALLS * context.peer_table.detector.trips.usual(), (closes_at - opens_at) / 4))
        self._matching = Matching(
            context.run_id,
            key,
            context.me,
            closes_at,
            reach=context.peer_table.own_reach(),
            await_s=await_s,
            last_choices=lambda: context.reputation.last_choices.in_round(key.round),
            unanswering=context.peer_table.detector.asked_last,
        )
        self._unbiased = unbiased(context.run_id, key.round)
        self._proven: set[PeerId] = set()
        """The known peers that are proven to us."""
        self._crowded: set[PeerId] = set()
        """Known strangers that exceed the quota of their address block in this round."""
        self._roomless: set[PeerId] = set()
        """Partners for whose swap no relay had room."""
        self._claimed_near: set[PeerId] = set()
        """Senders that claim to be in our own network, where both sides can dial each other."""
        self._changed = Signal()
        self._settled = Signal()
        self._met: Mapping[PeerId, PeerRecord] | None = None
        """The peer table's records that `_matching` already has as candidates."""
        self._held: PeerRecord | None = None
        """The last record of the locked partner. If it dies it soon leaves the peer table, but must still be called."""
        self._outs: frozenset[PeerId] = frozenset()
        self._ready_at = 0.0
        """Run time at which the locked partner will have stopped its trainer, as it claims."""
        self._has_work = False
        self.begun = False
        """Whether our work was ready, so that `partner` was called."""

    # -- incoming calls ----------------------------------------------------------------------------------------------

    def on_offer(self, sender: PeerId, offer: Offer) -> Answer:
        """Answer an offer for this round. Never blocks. Wakes the search only if the offer changes the match, which
        most do not."""
        course = self._matching.decision_state
        answer = self._answer(sender, offer)
        if self._matching.decision_state != course:
            self._wake()
        return answer

    def _answer(self, sender: PeerId, offer: Offer) -> Answer:
        matching, now = self._matching, self._context.clock.now()
        if offer.withdraw:
            matching.on_withdraw(sender)
            return Answer(Verdict.TAKEN)
        # a locked partner stays locked even if our clock was set back meanwhile
        if now < self._opens_at and matching.locked != sender:
            return Answer(Verdict.LATER, eta_s=self._opens_at - now, reason="the round is not open yet")
        if matching.locked != sender:
            if not self._will_have_work():
                return Answer(Verdict.LATER, eta_s=CONFIRM_S, reason="our trainer has not finished a step yet")
            if self._met_too_often(sender):
                return Answer(Verdict.TAKEN, reason="met too often lately")
            if self._has_no_place(sender):
                return Answer(Verdict.TAKEN, reason="many strangers are here; your address block is tried later")
            if self._is_roomless(sender):
                return Answer(Verdict.TAKEN, reason=NO_ROOM)
            if self._context.reputation.stranger_budget_spent(sender):
                return Answer(Verdict.TAKEN, reason="strangers held up our trainer lately; you are tried later")
        if offer.reach is Reach.DIRECT and not self._context.peer_table.is_open(sender):
            self._claimed_near.add(sender)
        reach = Reach.DIRECT if self._is_near(sender) else offer.reach
        answer = matching.on_offer(sender, now, reach, offer.proven)
        if answer.verdict is not Verdict.LOCKED:
            return answer
        self._ready_at = now + offer.eta_s
        return replace(answer, eta_s=self._context.trainers.stops_in())

    def on_swap(self, sender: PeerId) -> Answer:
        """Answer a peer that wants to swap; only the locked partner may."""
        if self._matching.locked == sender:
            return Answer(Verdict.LOCKED)
        if self._matching.locked is None and not self._matching.closed:
            return Answer(Verdict.LATER, eta_s=CONFIRM_S, reason="our lock is not confirmed yet")
        return Answer(Verdict.TAKEN, reason="not locked with you in this round")

    def _has_no_place(self, sender: PeerId) -> bool:
        """Return whether the sender is a stranger that exceeds the quota of its address block. While quotas are in
        force, a stranger that is not in the peer table has no place either."""
        if self._met is None or sender not in self._met:
            self._update_candidates()
        unlisted = self._crowded and self._met is not None and sender not in self._met
        return sender in self._crowded or bool(unlisted and self._context.reputation.unknown([sender]))

    def _met_too_often(self, sender: PeerId) -> bool:
        peer_table = self._context.peer_table
        return peer_table.acquaintance.met_too_often(sender, self.key.round, peer_table.live(), self._proven)

    def _will_have_work(self) -> bool:
        """Return whether we shall have work to exchange. Without it this peer sits the round out, and a partner would
        wait in vain."""
        self._has_work = self._has_work or self._context.trainers.has_work()
        return self._has_work

    # -- our own part ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send offers until a partner is locked or no candidate is left, and again after a partner is lost."""
        await self._context.clock.sleep(self._opens_at - self._context.clock.now())
        while not self._will_have_work():
            await self._context.clock.sleep(WORK_LOOK_S)
        self._matching.set_own_reach(self._context.peer_table.own_reach())
        # No TaskGroup: a cancelled one leaves a reference cycle, which would keep all records of the candidates alive,
        # once a round.
        sends = set[asyncio.Task[None]]()
        try:
            while not self._matching.closed:
                self._update_candidates()
                if self._matching.exhausted:
                    self._settled.set()
                sends.update(
                    map(asyncio.create_task, map(self._send, self._matching.actions(self._context.clock.now())))
                )
                await self._wait()
                for ended in [task for task in sends if task.done()]:
                    sends.remove(ended)
                    ended.result()
        finally:
            for task in sends:
                task.cancel()
            if sends:
                await asyncio.wait(sends)

    async def partner(self, closes_at: float) -> PeerId | None:
        """Wait for a lock until the window closes or no candidate is left. None: there is no partner; `solo_reason` has
        the reason."""
        matching, clock = self._matching, self._context.clock
        self.begun = True
        matching.extend(closes_at)
        for_strangers_until = self._for_strangers_until(clock.now())
        while matching.locked is None:
            now = clock.now()
            if now >= for_strangers_until:
                self._exclude_strangers(now)
                for_strangers_until = closes_at
            self._update_candidates()
            if now >= closes_at or (now >= self._opens_at and matching.exhausted):
                self.close()
                return None
            self._settled.clear()
            opens_at = self._opens_at if now < self._opens_at else closes_at
            await self._settled.wait_for(min(opens_at, closes_at, for_strangers_until) - now)
        return matching.locked

    def _for_strangers_until(self, now: float) -> float:
        """Return the run time until which strangers may promise an exchange without locking."""
        stranger_budget = self._context.reputation.stranger_budget
        bound = stranger_budget.with_strangers(now)
        if bound is None:
            return math.inf
        if not stranger_budget.waits_for_silent(PROMISES_S, now):
            self._matching.exclude(self._is_silent_stranger, "strange and silent")
        return now + min(bound, PROMISES_S)

    def _is_silent_stranger(self, peer: PeerId) -> bool:
        return peer not in self._matching.promising and self._context.reputation.is_stranger(peer)

    def _exclude_strangers(self, now: float) -> None:
        """Give up all strangers for this round, and charge the stranger budget with the time they took."""
        reputation, matching = self._context.reputation, self._matching
        promised = any(map(reputation.is_stranger, matching.promising))
        if matching.exclude(reputation.is_stranger, "strange and only promising"):
            charge = reputation.stranger_budget.charge if promised else reputation.stranger_budget.charge_silence
            charge(PROMISES_S, now)

    def lost(self, partner: PeerId, reason: str) -> None:
        """Drop the locked partner, and search for another one while the window is open."""
        self._matching.on_failed(partner, reason)
        self._matching.exclude(self._context.reputation.stranger_budget_spent, "strange while strangers held us up")
        self._wake()

    def lost_for_room(self, partner: PeerId) -> None:
        """Drop the locked partner because no relay had room for the swap. After MOST_ROOMLESS of them, give up all
        candidates that need a relay."""
        self._roomless.add(partner)
        self.lost(partner, NO_ROOM)
        if len(self._roomless) >= MOST_ROOMLESS:
            self._matching.exclude(self._matching.needs_relay, NO_ROOM)

    def _is_roomless(self, sender: PeerId) -> bool:
        full = len(self._roomless) >= MOST_ROOMLESS
        return sender in self._roomless or (full and self._matching.needs_relay(sender) and not self._is_near(sender))

    def has_no_time_for_another(self, seconds: float) -> bool:
        """Return whether a partner is locked and `seconds` are too few for it to find another partner."""
        return self.locked is not None and seconds <= hand_over_s(self._context)

    async def withdraw(self) -> bool:
        """Release the locked partner. Return whether it answered."""
        assert self.locked is not None
        return await withdraw(self._context, self._held_record(self.locked), self.key)

    def close(self) -> None:
        """End the search. Later offers are answered with `taken`, heartbeats of the partner with `locked`."""
        self._matching.close()
        self._wake()

    def solo_reason(self) -> str:
        """Return why there is no partner, as text for a person."""
        peer_table, training = self._context.peer_table, self._context.peer_table.others_training()
        if self._matching.has_candidates or not training:
            waiting = f"; {len(self._crowded)} strangers of crowded address blocks wait" if self._crowded else ""
            return self._matching.solo_reason() + waiting
        why = self._context.reputation.unacceptable_reason(peer_table.candidates(self.key.round))
        return f"{training} train and none is to be tried now: {why or 'not answering, banned or met too often lately'}"

    @property
    def locked(self) -> PeerId | None:
        return self._matching.locked

    @property
    def we_dial(self) -> bool:
        """Whether this peer dials the locked partner. Within one network either side could, so the pair's order
        decides."""
        partner = self._matching.locked
        if partner is not None and self._is_near(partner):
            return initiates(self._context.me, partner)
        return self._matching.we_dial

    @property
    def relayed(self) -> bool:
        """Whether the swap with the locked partner passes a relay, unless hole punching succeeds."""
        partner = self._matching.locked
        return partner is not None and not self._is_near(partner) and self._matching.needs_relay(partner)

    @property
    def reach(self) -> Reach:
        """How other peers could call us when this round opened."""
        return self._matching.reach

    @property
    def patience_s(self) -> float | None:
        """Seconds for which to wait for the locked partner, given when it claims to be ready; None: no limit, because
        the partner is not a stranger."""
        context, partner = self._context, self._matching.locked
        assert partner is not None
        now = context.clock.now()
        late_s = max(0.0, min(self._ready_at - now, context.trainers.all_stop_in()))
        return context.reputation.stranger_budget.max_wait(partner, now, late_s)

    async def alive(self, partner: PeerId) -> bool:
        """Return whether a locked partner still answers and is still locked with us. True if we cannot call it, as the
        deadlines then decide."""
        peer_table = self._context.peer_table
        record = self._held_record(partner)
        if record is None or peer_table.reach_of(partner) is Reach.NONE:
            return True  # we cannot call it; the deadline decides
        offer = Offer(self.key, reach=peer_table.own_reach(partner))
        # a partner that never answered a call may not be reachable from here: do not wait long for it
        most_s = FIRST_S if peer_table.detector.trips.srtt(partner) is None else MOST_S
        try:
            answer = await self._offer(record, offer, most_s)
        except NotDialled:
            return True  # as above
        return answer.verdict in (Verdict.LOCKED, Verdict.LATER)

    async def _offer(self, record: PeerRecord, offer: Offer, most_s: float = MOST_S, times: int = 1) -> Answer:
        """Send an offer, and report the outcome to the failure detector. A refusal counts as a sign of life.

        `most_s`: longest timeout in seconds. `times`: attempts; a relay may lose one call, and the next one takes
        another relay."""
        detector, began, peer = self._context.peer_table.detector, self._context.clock.now(), record.peer_id
        try:
            answer = await self._context.transport.offer(record, offer, min(most_s, detector.timeout(peer)))
        except PartnerLost as error:
            if times > 1 and not isinstance(error, NotDialled):
                await self._context.clock.sleep(AGAIN_S)
                return await self._offer(record, offer, most_s, times - 1)
            detector.lost(peer, "it did not answer an offer", error, self._context.clock.now() - began)
            raise
        except PartnerRefused:
            detector.heard(peer, "it refused an offer")
            raise
        detector.answered(peer, self._context.clock.now() - began)
        return answer

    def _held_record(self, partner: PeerId) -> PeerRecord | None:
        known = self._held if self._held is not None and self._held.peer_id == partner else None
        self._held = self._context.peer_table.peers.get(partner, known)
        return self._held

    def _update_candidates(self) -> None:
        """Add new candidates if the peer table or the set of out peers has changed. Leaves out peers in bad standing,
        and strangers while the stranger budget is used up."""
        peer_table = self._context.peer_table
        peers, outs = peer_table.peers, peer_table.detector.membership.peers_out()
        if peers is not self._met or outs != self._outs:
            self._met, self._outs = peers, outs
            if outs:
                self._matching.exclude(outs.__contains__, "not answering anybody")
            reputation = self._context.reputation
            self._proven = reputation.proven.among(peers)
            first = set[PeerId]() if self._unbiased else reputation.proven.going_first(peers)
            found = reputation.acceptable(peer_table.candidates(self.key.round, self._proven))
            own, round_ = peer_table.own_endpoints(), self.key.round
            unknown, vouched = reputation.unknown(found), self._context.vouched
            self._crowded = over_quota(self._context.run_id, round_, unknown, peers, own, vouched)
            reputation.searched(left_out=len(self._crowded))
            some = [peer for peer in found if peer not in self._crowded]
            self._matching.add(some, peer_table.uncallable(), first, peer_table.relayed())

    async def _wait(self) -> None:
        if self._matching.locked is not None:
            self._held_record(self._matching.locked)
        wake = self._matching.wake_at()
        idle = LOCKED_S if self._matching.locked is not None else LOOK_S
        pause = idle if wake is None else min(max(wake - self._context.clock.now(), 0.0), idle)
        await self._changed.wait_for(pause)
        self._changed.clear()

    def _is_near(self, peer: PeerId) -> bool:
        return peer in self._claimed_near or peer in self._context.peer_table.near()

    def _complete(self, send: Send) -> Offer:
        reach = max(send.offer.reach, self._context.peer_table.own_reach(send.to))
        return replace(send.offer, reach=reach, eta_s=self._context.trainers.stops_in())

    def _late(self, peer: PeerId) -> None:
        self._matching.on_late(peer)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._settled.set()

    async def _send(self, send: Send) -> None:
        matching, record = self._matching, self._context.peer_table.peers.get(send.to)
        late_s = None if send.offer.withdraw else self._context.peer_table.detector.late_after(send.to)
        timer = None if late_s is None else asyncio.get_running_loop().call_later(late_s, self._late, send.to)
        try:
            if record is None:
                raise PartnerLost("its address is not known yet")
            offer = send.offer if send.offer.withdraw else self._complete(send)
            answer = await self._offer(record, offer, times=1 if record.reach is Reach.DIRECT else 2)
        except NotDialled:
            if not send.offer.withdraw:
                matching.on_failed(send.to, "not dialled, as others at their addresses did not answer")
        except PartnerLost:
            if not send.offer.withdraw:
                matching.on_failed(send.to, "not answering")
        except PartnerRefused as refusal:
            if not send.offer.withdraw:
                matching.on_failed(send.to, f"refusing ({refusal.code})")
        except BadPayload as error:
            self._context.reputation.penalize(send.to, error.code, str(error))
            matching.on_failed(send.to, f"talking nonsense ({error.code})")
        else:
            if not send.offer.withdraw:
                now = self._context.clock.now()
                matching.on_answer(send.to, answer, now)
                if answer.verdict is Verdict.LOCKED and matching.locked == send.to:
                    self._ready_at = now + answer.eta_s
        finally:
            if timer is not None:
                timer.cancel()
            self._wake()  # `run` awaits this task and raises any other error
