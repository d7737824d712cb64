"""Decides which peers answer, how fast, and which are suspected. It feeds the outcome of calls to
`peer.protocol.swarm.failure_detection` and `peer.protocol.swarm.rtt`, asks other peers about suspects, and journals the
outcome.

On failure: a witness that does not answer becomes a suspect itself. Nothing here raises for the failure of another
peer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from peer.aio.events import Signal
from peer.errors import BadPayload, NotDialled, PartnerLost, PartnerRefused
from peer.observe import events
from peer.observe.status.value import MembershipStatus, SuspectedPeer
from peer.ports.transport import SwarmCalls
from peer.protocol.messages import PeerId, PeerRecord, Status
from peer.protocol.swarm.answering import Answering
from peer.protocol.swarm.failure_detection import DOUBT_S, FRESH_S, Changed, Check, Membership, confirm_after
from peer.protocol.swarm.rtt import RoundTrips

TICK_S = 1.0
DIAL_S = 4.0
"""Seconds that a witness may take to dial the suspect, in addition to the call itself."""
SHOWN = 20
LATE_S, LATE_CALLS = 0.5, 4.0
"""A peer's first answer counts as late after LATE_S seconds or LATE_CALLS usual round trips, whichever is longer. The
time includes making the connection."""
_KINDS: Mapping[str, type[events.PeerSuspected] | type[events.PeerOut] | type[events.PeerBack]] = {
    "suspected": events.PeerSuspected,
    "out": events.PeerOut,
    "back": events.PeerBack,
    "vouched": events.PeerBack,
}


class FailureDetector:
    """Decides which peers no longer answer. The owner records the outcome of each call; the detector asks other peers
    about suspects, and journals each suspicion and its resolution.

    `now`: returns run time in seconds. `lifetime_s`: lifetime of a directory record. `look_every_s`: seconds between
    two looks into the directory. Both determine how long a suspicion must last before the peer is out. `emit`: journals
    an event."""

    def __init__(
        self,
        now: Callable[[], float],
        lifetime_s: float = 45.0,
        look_every_s: float = 3.0,
        emit: Callable[[events.Event], None] = lambda event: None,
    ) -> None:
        self._now = now
        self.membership = Membership(confirm_after(lifetime_s, min(look_every_s, DOUBT_S)))
        self.trips = RoundTrips()
        self.answering = Answering()
        self._emit = emit
        self._suspected = Signal()

    # -- outcomes of calls -------------------------------------------------------------------------------------------

    def timeout(self, peer: PeerId) -> float:
        """Return the timeout in seconds of a small call to this peer."""
        return self.trips.timeout(peer)

    def heard(self, peer: PeerId, what: str = "it called") -> None:
        """Record a sign of life of this peer; `what` names it."""
        self.answering.called(peer)
        self._journal(self.membership.on_contact(peer, self._now(), what))

    def answered(self, peer: PeerId, took_s: float) -> None:
        """Record that this peer answered a small call. `took_s`: seconds, without a wait that we asked for."""
        self.trips.observe(peer, took_s)
        self.answering.answered(peer)
        self.heard(peer, "it answered")

    def exchanged(self, peer: PeerId) -> None:
        """Record a successful exchange with this peer, whichever side called."""
        self.answering.answered(peer)
        self.heard(peer, "it exchanged with us")

    def failed(self, peer: PeerId, why: str, after_s: float) -> None:
        """Record that a call to this peer failed after `after_s` seconds."""
        if after_s >= self.trips.timeout(peer):
            self.trips.timed_out(peer, after_s)
        heard_s = self.contact_age_s(peer)
        if heard_s is None or heard_s >= FRESH_S:  # else the peer is alive: only this call was lost
            self.answering.failed(peer, self._now())
        self._journal(self.membership.failed(peer, self._now(), why))

    def lost(self, peer: PeerId, what: str, error: PartnerLost, after_s: float) -> None:
        """As `failed`. Ignores a call that was never dialled, which shows nothing about the peer."""
        if not isinstance(error, NotDialled):
            self.failed(peer, f"{what}: {error}", after_s)

    def seen(self, records: Mapping[PeerId, PeerRecord]) -> None:
        """Record the records that a look into the directory has found."""
        self._journal(self.membership.seen(records, self._now()))

    def forget(self) -> None:
        """Forget all measurements and suspicions, because this machine slept."""
        self.membership.forget()
        self.trips.forget()
        self.answering.forget()

    # -- findings ----------------------------------------------------------------------------------------------------

    def out(self, peer: PeerId) -> bool:
        """Return whether this peer is out, so that it is no candidate."""
        return self.membership.out(peer)

    def asked_last(self) -> set[PeerId]:
        """Return the peers that did not answer lately, so that others are asked before them."""
        return self.answering.asked_last(self._now())

    def late_after(self, peer: PeerId) -> float | None:
        """Return the seconds after which a small call to this peer is late, so that other peers are called too. None:
        the peer has answered before, and gets its full timeout."""
        if self.trips.srtt(peer) is not None:
            return None
        return max(LATE_S, LATE_CALLS * self.trips.usual())

    def contact_age_s(self, peer: PeerId) -> float | None:
        """Return the seconds since the last sign of life of this peer; None: there was none, or only long ago."""
        return self.membership.contact_age_s(peer, self._now())

    def report(self) -> MembershipStatus:
        """Return the suspected peers for `peer status` and the metrics."""
        now, cases = self._now(), self.membership.cases()
        cut_off = self.membership.isolated_s(now)
        return MembershipStatus(
            suspected=tuple(
                SuspectedPeer(
                    peer_id=peer,
                    out=case.out,
                    seconds=round(now - case.since, 1),
                    reason=case.why,
                    asked=len(case.asked),
                    denied=len(case.denied),
                )
                for peer, case in list(cases.items())[:SHOWN]
            ),
            suspected_count=sum(not case.out for case in cases.values()),
            out_count=sum(case.out for case in cases.values()),
            cut_off_s=None if cut_off is None else round(cut_off, 1),
        )

    async def suspicion(self, within_s: float) -> None:
        """Wait until a further peer is suspected, at most `within_s` seconds."""
        self._suspected.clear()
        await self._suspected.wait_for(within_s)

    # -- asking others -----------------------------------------------------------------------------------------------

    async def run(
        self,
        transport: SwarmCalls,
        peers: Callable[[], Mapping[PeerId, PeerRecord]],
        rng: random.Random,
        sleep: Callable[[float], Any],
    ) -> None:
        """Ask other peers about suspects until cancelled."""
        async with asyncio.TaskGroup() as asking:
            while True:
                if not self.membership.suspects():
                    self._suspected.clear()
                    await self._suspected.wait()
                known = peers()
                for check in self._due(known, rng):
                    by, about = known[check.by], check.about
                    asking.create_task(self._ask_witness(transport, by, about))
                await sleep(TICK_S)

    def _due(self, known: Mapping[PeerId, PeerRecord], rng: random.Random) -> list[Check]:
        able = [p for p, r in known.items() if r.reach and r.status is Status.TRAINING]
        checks, changed = self.membership.checks(able, self._now(), rng)
        self._journal(changed)
        return checks

    async def _ask_witness(self, transport: SwarmCalls, by: PeerRecord, about: PeerId) -> None:
        began, bound_s = self._now(), self.timeout(by.peer_id) + DIAL_S
        try:
            vouched = await transport.vouch(by, about, bound_s)
        except PartnerLost as error:
            self.lost(by.peer_id, "asked about another, it did not answer", error, self._now() - began)
            return
        except (PartnerRefused, BadPayload):
            return  # the witness is alive but gave no answer about the suspect
        self.heard(by.peer_id, "it answered")
        if vouched.reaches is not None:
            self._journal(
                self.membership.on_witness_answer(by.peer_id, about, vouched.reaches, vouched.reason, self._now())
            )

    def _journal(self, changed: list[Changed]) -> None:
        for one in changed:
            if one.change == "suspected":
                self._suspected.set()
            kind = _KINDS[one.change]
            self._emit(kind(peer=one.peer, reason=one.reason, seconds=round(one.seconds, 3)))
