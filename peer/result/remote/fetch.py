"""States fetched from donors by a guest: whole ones in pairs, each from one donor, and the one state of a group."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from peer.aio.threads import Offload
from peer.errors import SourceError, StateError
from peer.join.context import JoinContext
from peer.join.donors import DonorQuery, candidates, live_round
from peer.join.offers import SnapshotOffer, compatible_offers
from peer.protocol.messages import PeerId
from peer.protocol.model.layout import Layout
from peer.state.transfer.download import Download, Outcome
from peer.state.transfer.pieces import PieceStore
from peer.state.transfer.scheduler import DonorRates

RETRY_S = 1.0
SETTLE_S = 5.0
"""Seconds after a state in which another donor may finish the copy that it gives."""


@dataclass(slots=True)
class FetchedStates:
    """Sum of the states that were fetched, and whose they are."""

    total: torch.Tensor | None = None
    """Flat fp32."""
    donors: list[PeerId] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def add(self, params: torch.Tensor, donors: Sequence[PeerId], round_: int) -> None:
        """Add one whole state."""
        self.total = params if self.total is None else self.total.add_(params)
        self.donors += donors
        self.rounds.append(round_)

    def mean(self) -> torch.Tensor:
        """Return the mean, in the memory of the sum."""
        assert self.total is not None
        return self.total.div_(len(self.rounds)) if len(self.rounds) > 1 else self.total


class GuestFetch:
    """Fetches states for a process that does not take part. Momentum is left with the donors."""

    def __init__(self, context: JoinContext, layout: Layout, offload: Offload, *, group: bool) -> None:
        self._context = context
        self._layout = layout
        self._offload = offload
        self._group = group
        self._rates = DonorRates()
        self._asking = DonorQuery(context.transport, layout, momentum=group)
        self._rng = random.Random()
        self._why = "no peer with a complete state is in the directory yet"

    async def states(self, count: int, wait_s: float) -> FetchedStates:
        """Fetch the states of `count` donors; of a group the one that its members have.

        Fewer donors are enough once all that offer one have given theirs. Raises StateError when nothing came for
        `wait_s` seconds, and SourceError when a donor's state cannot be a model."""
        found, now = FetchedStates(), asyncio.get_running_loop().time
        deadline, settled = now() + wait_s, 0.0
        while len(found.rounds) < (1 if self._group else count):
            offers = [offer for offer in await self._offers() if offer.donor.peer_id not in found.donors]
            if not offers and found.rounds and now() >= settled:
                said = f"{len(found.rounds)} of {count} donors gave their state: no other one offers it"
                self._context.say(said)
                break
            if await self._fetch(offers, found):
                deadline, settled = now() + wait_s, now() + SETTLE_S
                continue
            if now() >= deadline:
                raise StateError(
                    f"no donor gave a state within {wait_s:.0f} s: {self._why}",
                    "A peer of the run, or its bootstrap node, has to be up. Try again later.",
                )
            await self._context.clock.sleep(RETRY_S)
        return found

    async def _offers(self) -> list[SnapshotOffer]:
        """Return the offers that go together, the newest first."""
        records = (await self._context.directory.peers()).values()
        able = candidates(records, self._rates, self._rng)
        offers = await self._asking.ask(able, live_round(records) or 0)
        if not offers.offered:
            self._why = offers.problem()
        return compatible_offers(offers.offered, momentum=self._group)

    async def _fetch(self, offers: Sequence[SnapshotOffer], found: FetchedStates) -> bool:
        """Fetch one state: in pairs from one donor, in a group from all of them."""
        together = [[*offers]] if self._group and offers else [[offer] for offer in offers]
        for donors in together:
            pieces, outcome = PieceStore(self._layout, None, momentum=False), Outcome()
            download = Download(self._context.transport, pieces, self._rates, outcome, offload=self._offload)
            for offer in donors:
                download.add(offer.donor, offer.index)
            await download.run()
            if pieces.complete:
                params, _ = pieces.state()
                if not bool(torch.isfinite(params).all()):
                    raise SourceError(f"the state of {donors[0].donor.peer_id} holds NaN or infinity")
                found.add(params, sorted(outcome.given), donors[0].index.round)
                return True
            self._why = "; ".join(f"{peer}: {why}" for peer, why in list(outcome.left.items())[:3]) or self._why
        return False
