"""The shell around `peer.protocol.pairing`: sends its offers, feeds it the answers, keeps its deadlines."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import replace

from peer.daemon.conduct import Conduct
from peer.daemon.interfaces import Clock, Transport
from peer.daemon.view import View
from peer.errors import BadPayload, PartnerLost, PartnerRefused
from peer.protocol.messages import Answer, Offer, PeerId, RoundKey, RunId, Verdict
from peer.protocol.pairing import Pairing, Send

OFFER_TIMEOUT_S = 1.5
REMEMBER_ROUNDS = 8


class Matchmaker:
    """Finds a partner for one (round, fragment) at a time. `run` is started with the round and cancelled at its end."""

    def __init__(
        self, run_id: RunId, me: PeerId, transport: Transport, clock: Clock, view: View, conduct: Conduct
    ) -> None:
        self._run_id = run_id
        self._me = me
        self._transport = transport
        self._clock = clock
        self._view = view
        self._conduct = conduct
        self._pairing: Pairing | None = None
        self._opens_at = 0.0
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._past: OrderedDict[RoundKey, PeerId] = OrderedDict()

    # -- what others ask ---------------------------------------------------------------------------------------------

    def on_offer(self, sender: PeerId, offer: Offer) -> Answer:
        """Answer from the state at hand; never blocks."""
        answer = self._answer(sender, offer)
        return answer if self._pairing is None else replace(answer, dialable=self._pairing.dialable)

    def _answer(self, sender: PeerId, offer: Offer) -> Answer:
        if self._past.get(offer.key) == sender:
            return Answer(Verdict.LOCKED)
        pairing, now = self._pairing, self._clock.now()
        if not offer.withdraw and (why := self._conduct.why_out(sender)):
            return Answer(Verdict.REFUSED, reason=f"standing: {why}")
        if self._view.banned(sender):
            return Answer(Verdict.REFUSED, reason="banned by the operator")
        if pairing is None or offer.key > pairing.key:
            return Answer(Verdict.LATER, eta_s=1.0, reason="not in that round yet")
        if offer.key < pairing.key:
            return Answer(Verdict.TAKEN, reason="past that round")
        self._poke()
        if offer.withdraw:
            pairing.on_withdraw(sender)
            return Answer(Verdict.TAKEN)
        if now < self._opens_at:
            return Answer(Verdict.LATER, eta_s=self._opens_at - now, reason="the round is not open yet")
        if self._cannot_pair(sender, offer.key):
            return Answer(Verdict.TAKEN, reason="met too often lately")
        if pairing.locked != sender and self._conduct.too_strange(sender):
            return Answer(Verdict.TAKEN, reason="strangers held up our trainer lately; you are tried later")
        return pairing.on_offer(sender, now, offer.dialable)

    def on_swap(self, sender: PeerId, key: RoundKey) -> Answer:
        """Only the locked partner may swap."""
        if why := self._conduct.why_out(sender):
            return Answer(Verdict.REFUSED, reason=f"standing: {why}")
        pairing = self._pairing
        if pairing is None or key > pairing.key:
            return Answer(Verdict.LATER, eta_s=1.0)
        if key == pairing.key and pairing.locked == sender:
            return Answer(Verdict.LOCKED)
        if key == pairing.key and pairing.locked is None and not pairing.closed:
            return Answer(Verdict.LATER, eta_s=OFFER_TIMEOUT_S, reason="our lock is not confirmed yet")
        return Answer(Verdict.TAKEN, reason="not locked with you in this round")

    def _candidates(self, round_: int) -> list[PeerId]:
        """Without those out of favour, and strangers while our patience with them is used up."""
        known = self._view.candidates(round_)
        return [peer for peer in known if not self._conduct.out_for_s(peer) and not self._conduct.too_strange(peer)]

    def _cannot_pair(self, sender: PeerId, key: RoundKey) -> bool:
        if self._pairing is not None and self._pairing.locked == sender:
            return False
        return self._view.acquaintance.too_often(sender, key.round, self._view.others_training() + 1)

    # -- one round ---------------------------------------------------------------------------------------------------

    def open(self, key: RoundKey, opens_at: float, closes_at: float) -> None:
        """A new round; the former one is over."""
        self._finish()
        self._pairing = Pairing(self._run_id, key, self._me, closes_at, dialable=self._view.dialable())
        self._opens_at = opens_at
        self._poke()

    async def run(self) -> None:
        """Offer until locked or out of candidates, and go on so after a partner is lost."""
        pairing = self._pairing
        assert pairing is not None
        await self._clock.sleep(self._opens_at - self._clock.now())
        async with asyncio.TaskGroup() as sends:
            while not pairing.closed:
                pairing.add(self._candidates(pairing.key.round), self._view.undialable())
                for send in pairing.actions(self._clock.now()):
                    sends.create_task(self._send(pairing, send))
                await self._wait(pairing)

    async def partner(self, closes_at: float) -> PeerId | None:
        """Wait for a lock until the window closes, or until nobody is left to ask. None: alone, see `why_alone`."""
        pairing = self._pairing
        assert pairing is not None
        pairing.patience_until = closes_at
        while pairing.locked is None:
            now = self._clock.now()
            pairing.add(self._candidates(pairing.key.round), self._view.undialable())
            if now >= closes_at or (now >= self._opens_at and pairing.exhausted):
                pairing.close()
                self._poke()
                return None
            self._settled.clear()
            await _until(self._settled, closes_at - now)
        return pairing.locked

    def lost(self, partner: PeerId, reason: str) -> None:
        """The locked partner is gone: look for another while the window is open."""
        assert self._pairing is not None
        self._pairing.on_failed(partner, reason)
        self._poke()

    def close(self) -> None:
        """The outcome is reached; late offers hear `taken`, the partner's heartbeat still hears `locked`."""
        if self._pairing is not None:
            self._pairing.close()
            self._poke()

    def why_alone(self) -> str:
        return self._pairing.why_alone() if self._pairing is not None else "no round is open"

    @property
    def we_dial(self) -> bool:
        """Whether the swap with the locked partner is ours to dial."""
        return self._pairing is not None and self._pairing.we_dial

    async def alive(self, partner: PeerId, key: RoundKey) -> bool:
        """Whether a locked partner still answers and still holds us."""
        record = self._view.peers.get(partner)
        if record is None or not record.endpoints or not record.reachable:
            return True  # we cannot dial it; the deadline decides
        answer = await self._transport.offer(record, Offer(key, dialable=self._view.dialable()), OFFER_TIMEOUT_S)
        return answer.verdict in (Verdict.LOCKED, Verdict.LATER)

    def _finish(self) -> None:
        if self._pairing is not None and self._pairing.locked is not None:
            self._past[self._pairing.key] = self._pairing.locked
            while len(self._past) > REMEMBER_ROUNDS:
                self._past.popitem(last=False)
        self._pairing = None

    async def _wait(self, pairing: Pairing) -> None:
        wake = pairing.wake_at()
        pause = 1.0 if wake is None else min(max(wake - self._clock.now(), 0.0), 1.0)
        await _until(self._changed, pause)
        self._changed.clear()

    def _poke(self) -> None:
        self._changed.set()
        self._settled.set()

    async def _send(self, pairing: Pairing, send: Send) -> None:
        record = self._view.peers.get(send.to)
        try:
            if record is None:
                raise PartnerLost("its address is not known yet")
            answer = await self._transport.offer(record, send.offer, OFFER_TIMEOUT_S)
        except PartnerLost:
            if not send.offer.withdraw:
                pairing.on_failed(send.to, "not answering")
        except PartnerRefused as refusal:
            if not send.offer.withdraw:
                pairing.on_failed(send.to, f"refusing ({refusal.code})")
        except BadPayload as error:
            self._conduct.offence(send.to, error.code, str(error))
            pairing.on_failed(send.to, f"talking nonsense ({error.code})")
        else:
            if not send.offer.withdraw:
                pairing.on_answer(send.to, answer, self._clock.now())
        self._poke()


async def _until(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, but no longer."""
    try:
        async with asyncio.timeout(max(seconds, 0.0)):
            await event.wait()
    except TimeoutError:
        return
