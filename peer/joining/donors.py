"""Asks donors which state they offer. `peer.protocol.policy.donors` decides which donors are asked and how answers are
judged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from peer.codes import Code
from peer.errors import BadPayload, ExchangeError, PartnerRefused
from peer.ports.transport import StateCalls
from peer.protocol.messages import PeerId, PeerRecord, StateIndex
from peer.protocol.model.layout import Layout
from peer.protocol.policy.donors import (
    AGAIN_S,
    ASK_S,
    ASKED_AGAIN,
    MORE_S,
    OFFER_PATIENCE_S,
    WAVES,
    DonorPolicy,
    Offers,
)
from peer.state.snapshot import check_index, mark_of


class DonorQuery:
    """Collects offers of a state from donors. `fresh`: ask for the donor's present state, not for a recent copy."""

    def __init__(self, transport: StateCalls, layout: Layout, policy: DonorPolicy, *, fresh: bool = False) -> None:
        self._transport = transport
        self._layout = layout
        self._policy = policy
        self._fresh = fresh
        self._wanted = ""

    async def query(self, donors: Sequence[PeerRecord], run_round: int, wanted: str = "") -> Offers:
        """Ask donors in waves until offers from enough networks have arrived. Slow donors do not delay a wave. In a
        group, ask again until the donors agree on one state, one of them still has the state `wanted`, or they clearly
        will not agree. `run_round`: the run's present round."""
        self._wanted = wanted
        offers, asked = Offers(), set[PeerId]()
        for _ in range(WAVES):
            wave = self._policy.next_wave(donors, asked)
            if not wave or self._policy.enough(offers, donors):
                break
            asked.update(donor.peer_id for donor in wave)
            offers.add(await self._ask_all(wave, run_round, donors, fresh=self._fresh))
        for _ in range(ASKED_AGAIN):
            if not self._policy.ask_again(offers, wanted):
                break
            await asyncio.sleep(AGAIN_S)
            again = [offered.donor for offered in offers.offered]
            offers = await self._ask_all(again, run_round, again, fresh=True)
        return offers

    async def _ask_all(
        self, donors: Sequence[PeerRecord], run_round: int, known: Sequence[PeerRecord], *, fresh: bool
    ) -> Offers:
        """Ask all of `donors` at once. `known`: all donors that could be asked, by which the policy judges whether
        there are enough offers."""
        offers, policy = Offers(), self._policy
        async with asyncio.TaskGroup() as asking:
            asked = {
                asking.create_task(self._ask(donor, run_round, offers, fresh=fresh)): donor.peer_id for donor in donors
            }
            waiting = set(asked)
            while waiting and not offers.offered:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if waiting:
                _, waiting = await asyncio.wait(waiting, timeout=OFFER_PATIENCE_S)
            until = asyncio.get_running_loop().time() + MORE_S
            while waiting and not policy.enough(offers, known):
                if (left := until - asyncio.get_running_loop().time()) <= 0:
                    break
                _, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
                policy.mark_silent(asked[task])
                offers.rejections[asked[task]] = "has not answered yet"
        return offers

    async def _ask(self, donor: PeerRecord, run_round: int, offers: Offers, *, fresh: bool) -> None:
        peer = donor.peer_id
        try:
            index = await fetch_state_index(self._transport, donor, fresh, self._wanted)
            check_index(index, self._layout, momentum=self._policy.momentum)
        except BadPayload as error:
            self._policy.mark_invalid(peer)
            offers.rejections[peer] = str(error)
        except ExchangeError as error:
            self._policy.mark_silent(peer)
            offers.rejections[peer] = str(error)
            if isinstance(error, PartnerRefused) and error.eta_s > 0:
                offers.busy_for(error.eta_s)
        else:
            mark, address = mark_of(index.pieces), self._transport.answered_at(peer)
            self._policy.offer(offers, donor, index, mark=mark, address=address, run_round=run_round)


async def fetch_state_index(
    transport: StateCalls, donor: PeerRecord, fresh: bool = False, wanted: str = ""
) -> StateIndex:
    """Return the index of a donor's state. Retries while the donor is still making its copy. Raises ExchangeError."""
    for left in reversed(range(ASKED_AGAIN)):
        try:
            return await transport.describe_state(donor, ASK_S, fresh, wanted)
        except PartnerRefused as refusal:
            if refusal.code != Code.NO_STATE or not left:
                raise
        await asyncio.sleep(AGAIN_S)
    raise AssertionError("the last try returns or raises")
