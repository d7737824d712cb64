"""Finds out which state of a fragment most members of the group have, and fetches it, for a member whose state differs.

When a stale member gets a roster, its members are about to take their step. The state to fetch is therefore not the one
that the roster builds on but the one after it, so the members are asked again until most of them hold the later
state."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from peer.errors import BadPayload, ExchangeError, PartnerLost, PartnerRefused
from peer.exchange.deadlines import transfer_s
from peer.exchange.group.context import GroupContext
from peer.protocol.group.quorum import Base
from peer.protocol.group.roster import Roster, leaders
from peer.protocol.messages import PeerId, PeerRecord, RoundKey
from peer.state.transfer.fragment import fetch_fragment

ASK_S = 3.0
"""Seconds to wait for the members' answers."""
BRIEF_S = 1.0
"""As `ASK_S`, if the state is needed soon and the members can be asked again later."""
AGAIN_S = 1.0
"""Seconds until the members are asked again."""
MAX_ASKED = 16
"""Most members that are asked."""


class CatchUp:
    """Looks up which state of a fragment the group has, and fetches it."""

    def __init__(self, context: GroupContext, scratch: Path | None = None) -> None:
        """`scratch`: folder for fetched states; None: they are kept in memory."""
        self._context = context
        self._scratch = scratch
        self.donor: PeerId | None = None
        """The peer that gave the last state."""

    async def fetch(
        self,
        key: RoundKey,
        roster: Roster | None,
        own: bytes,
        settle_s: float,
        ours: Base | None = None,
        at_last: bool = False,
    ) -> tuple[Base, tuple[Tensor, Tensor] | None] | None:
        """Return the base that most members hold, with its (outer_params, outer_momentum). The tensors are None if we
        hold that base too, that is, if its digest is `own`, the digest of our state. Returns None if no member that
        answers knows of a roster, so that there is nothing to catch up with.

        `settle_s`: seconds to wait for the members to apply the present round. `ours`: our base; it counts as one vote,
        and no earlier base is fetched. `at_last`: no round follows, so an earlier base is fetched too if more than half
        of all members have it.

        Raises PartnerLost if no member gives the state."""
        clock, began = self._context.clock, self._context.clock.now()
        donors, failed = self._donors(key, roster), ""
        while donors:
            held = await self._held(donors, key.fragment, ASK_S if settle_s else BRIEF_S)
            base, holders = _most_common(held, roster is not None, ours, len(donors) + 1 if at_last else None)
            now = clock.now()
            settled = roster is None or base is None or base.since >= key.round or now - began >= settle_s
            if base is not None and settled:
                if base.digest == own:
                    return base, None
                values = await self._from_any(key.fragment, base, holders)
                if values is not None:
                    return base, values
                failed = "those that have it gave it not"
            if base is None and held:
                return None
            if now - began >= settle_s + AGAIN_S:
                break
            await clock.sleep(AGAIN_S)
        raise PartnerLost(f"the group's state could not be fetched: {failed or 'nobody who has it answers'}")

    def _donors(self, key: RoundKey, roster: Roster | None) -> list[PeerRecord]:
        """Return the peers to ask, in an order that differs from round to round."""
        context = self._context
        known, live = context.peer_table.peers, context.live(even_finished=roster is None) - {context.terms.me}
        named = live if roster is None else live.intersection(roster.owners)
        order = leaders(context.terms.run_id, RoundKey(key.round + 1, key.fragment), named)
        return [known[peer] for peer in order if peer in known and known[peer].reach][:MAX_ASKED]

    async def _held(self, donors: Sequence[PeerRecord], fragment: int, ask_s: float) -> list[tuple[PeerRecord, Base]]:
        """Return the answers that arrive within `ask_s`; if there are none, the first answer within twice that."""

        async def ask(donor: PeerRecord) -> Base | None:
            try:
                return await self._context.transport.held(donor, fragment, 2 * ask_s)
            except ExchangeError:
                return None

        tasks = {asyncio.create_task(ask(donor)): donor for donor in donors}
        try:
            done, waiting = await asyncio.wait(tasks, timeout=ask_s)
            while waiting and all(task.result() is None for task in done):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        answers = [(donor, task.result()) for task, donor in tasks.items() if not task.cancelled()]
        return [(donor, base) for donor, base in answers if base is not None]

    async def _from_any(self, fragment: int, base: Base, holders: Sequence[PeerRecord]) -> tuple[Tensor, Tensor] | None:
        context = self._context
        for donor in holders:
            try:
                values = await fetch_fragment(
                    context.transport,
                    donor,
                    fragment,
                    base.digest,
                    context.terms.elements[fragment],
                    transfer_s,
                    context.offload,
                    self._scratch,
                )
                self.donor = donor.peer_id
                return values
            except BadPayload as error:
                context.reputation.penalize(donor.peer_id, error.code, error.reason)
            except (PartnerLost, PartnerRefused):
                continue
        return None


def _most_common(
    held: Sequence[tuple[PeerRecord, Base]], even_first: bool, ours: Base | None, voters: int | None
) -> tuple[Base | None, list[PeerRecord]]:
    """Return the base that most peers hold, and its holders. Of bases with equally many holders, the one of the later
    round wins, then the one with the smaller `Base.mark`.

    `even_first`: count bases without a roster, too. `ours`: our own base; it counts as one vote, and earlier bases are
    left out. `voters`: number of peers that could vote; an earlier base is accepted if more than half of them hold it.
    None: never accept an earlier base."""
    bases = {base.mark(): base for _, base in held if base.electors or even_first}
    holders = {mark: [donor for donor, base in held if base.mark() == mark] for mark in bases}
    count = Counter({mark: len(some) for mark, some in holders.items()})
    if ours is not None and ours.electors:
        count[ours.mark()] += 1
    fit = {
        mark: base
        for mark, base in bases.items()
        if ours is None or base.since >= ours.since or (voters is not None and 2 * count[mark] > voters)
    }
    if not fit:
        return None, []
    if ours is not None and ours.electors:
        fit[ours.mark()] = ours
    mark = min(fit, key=lambda mark: (-count[mark], -fit[mark].since, mark))
    return fit[mark], holders.get(mark, [])
