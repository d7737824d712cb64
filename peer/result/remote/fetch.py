"""States fetched from donors by a guest: whole ones in pairs, each from one donor, and the one state of a group.

In pairs each state is weighed as a joiner weighs it (`peer.joining.weighing`): by its loss on windows that nobody else
knows. One that no honest donor gives is refused. The others are averaged greedily, the best first (model soups, arXiv
2203.05482): a state whose part in the mean raises the loss on those windows, by more than chance explains, is
left out. So a liar's state gets in only if it makes the result hardly worse there. Where no state can be weighed, one
that lies apart from the others is left out."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from peer.aio.threads import Offload
from peer.errors import SourceError, StateError
from peer.joining.context import JoinContext
from peer.joining.donors import DonorQuery
from peer.joining.weighing import StateWeighing
from peer.protocol.messages import PeerId
from peer.protocol.model.layout import Layout
from peer.protocol.policy.donors import (
    COMPARABLE,
    ENOUGH,
    GUEST_SETTLE_S,
    RETRY_S,
    DonorPolicy,
    SnapshotOffer,
    StateLosses,
    clearly_better,
    grace_s,
    states_apart,
)
from peer.state.transfer.download import Download, Outcome
from peer.state.transfer.pieces import PieceStore
from peer.state.unnamed import unnamed_values


@dataclass(frozen=True, slots=True)
class FetchedState:
    """One whole state."""

    params: torch.Tensor
    """Flat fp32."""
    donors: tuple[PeerId, ...]
    round: int
    losses: StateLosses | None = None
    """On windows of our own. None: there are none to judge it by."""


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """The state that is used: one, or the mean of several."""

    params: torch.Tensor
    """Flat fp32."""
    donors: tuple[PeerId, ...]
    rounds: tuple[int, ...]
    """One for each state."""
    left_out: dict[PeerId, str] = field(default_factory=dict)
    """Donors whose state was fetched and is not used, and why, for a person."""


class GuestFetch:
    """Fetches states for a process that does not take part. Momentum is left with the donors."""

    def __init__(
        self,
        context: JoinContext,
        layout: Layout,
        offload: Offload,
        *,
        group: bool,
        weighing: StateWeighing | None = None,
        scratch: Path | None = None,
    ) -> None:
        """`weighing`: judges states of pairs; None: they are used as they come. `scratch`: a folder whose disk holds
        the states; None: they lie in memory."""
        self._context = context
        self._layout = layout
        self._offload = offload
        self._group = group
        self._weighing = weighing
        self._scratch = scratch
        self._policy = DonorPolicy(momentum=group, fragments=len(layout.fragments))
        self._donor_query = DonorQuery(context.transport, layout, self._policy)
        self._rng = random.Random()
        self._failure_reason = "no peer with a complete state is in the directory yet"
        self._left_out: dict[PeerId, str] = {}
        """Donors whose state is not used, and why, for a person."""
        self._failed_donors: dict[PeerId, str] = {}
        """Donors that were left before they had given a whole state, and why."""
        self._mismatched_offers: dict[PeerId, str] = {}
        """Peers whose latest offer does not go with those of the others, and why."""

    async def model(self, count: int, wait_s: float) -> FetchedModel:
        """Fetch the states of `count` donors and return their mean; of a group the one state that its members have.

        Fewer donors are enough once all that offer one have given theirs. Raises StateError when nothing came for
        `wait_s` seconds, and SourceError when no state that came can be used."""
        taken, now = list[FetchedState](), asyncio.get_running_loop().time
        deadline, settled = now() + wait_s, 0.0
        wanted = 1 if self._group else count
        while len(taken) < wanted:
            had = {donor for state in taken for donor in state.donors} | self._left_out.keys()
            offers = [offer for offer in await self._offers() if offer.donor.peer_id not in had]
            offers.sort(key=lambda offer: offer.donor.peer_id in self._failed_donors)  # those that failed come last
            if new := await self._fetch_states(offers, wanted - len(taken), len(taken)):
                taken += [state for state in [await self._judged(one) for one in new] if state is not None]
                deadline, settled = now() + wait_s, now() + GUEST_SETTLE_S
                continue
            if had and now() >= settled:
                break
            if now() >= deadline:
                raise StateError(
                    f"no donor gave a state within {wait_s:.0f} s: {self._failure_reason}",
                    "A peer of the run, or its bootstrap node, has to be up. Try again later.",
                )
            await self._context.clock.sleep(RETRY_S)
        if not taken:
            why = "; ".join(f"{donor}: {why}" for donor, why in self._left_out.items())
            raise SourceError(f"no state that donors give can be used: {why}", "Try again later.")
        gave = {donor for state in taken for donor in state.donors}
        for donor, why in (self._mismatched_offers | self._failed_donors).items():
            if donor not in gave | self._left_out.keys():
                self._leave_out((donor,), why)
        if len(taken) < wanted:
            self._context.say(f"{len(taken)} of {wanted} donors gave their state: no other one offers it")
        return await self._mean(taken)

    async def _offers(self) -> list[SnapshotOffer]:
        """Return the offers that go together, the newest first."""
        records = (await self._context.directory.peers()).values()
        policy = self._policy
        offers = await self._donor_query.query(policy.candidates(records, self._rng), policy.run_round(records))
        if not offers.offered:
            self._failure_reason = offers.problem()
        choice = policy.choose(offers.offered)
        self._mismatched_offers = policy.left_out(offers, choice)
        return choice.offers

    async def _fetch_states(self, offers: Sequence[SnapshotOffer], most: int, had: int) -> list[FetchedState]:
        """Fetch up to `most` states side by side: in pairs each from one donor, in a group one from all of them.

        Once `ENOUGH` are here, `had` of them from before, the others have as long again as those took."""
        together = [[*offers]] if self._group and offers else [[offer] for offer in offers[:most]]
        now = asyncio.get_running_loop().time
        began, found, until = now(), list[FetchedState](), math.inf
        waiting = {asyncio.create_task(self._fetch_state(donors)): donors for donors in together}
        try:
            while waiting:
                if had + len(found) >= ENOUGH and until == math.inf:
                    until = now() + grace_s(now() - began, GUEST_SETTLE_S)
                left_s = None if until == math.inf else max(0.0, until - now())
                done, _ = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                found += [state for task in done if (state := task.result()) is not None]
                for task in done:
                    del waiting[task]
                if not done:
                    slow = [offer.donor.peer_id for donors in waiting.values() for offer in donors]
                    self._leave_out(slow, "it came much more slowly than the others")
                    break
        finally:
            for task in waiting:
                task.cancel()
            if waiting:
                await asyncio.wait(waiting)
        return found

    async def _fetch_state(self, donors: Sequence[SnapshotOffer]) -> FetchedState | None:
        """Fetch one state of these donors together; None: they did not give it."""
        pieces, outcome = await self._offload(self._pieces), Outcome()
        download = Download(self._context.transport, pieces, self._policy.rates, outcome, offload=self._offload)
        for offer in donors:
            download.add(offer.donor, offer.index)
        await download.run()
        if not pieces.complete:
            self._failed_donors |= outcome.left
            self._failure_reason = (
                "; ".join(f"{peer}: {why}" for peer, why in list(outcome.left.items())[:3]) or self._failure_reason
            )
            return None
        return FetchedState(pieces.state()[0], tuple(sorted(outcome.given)), donors[0].index.round)

    def _pieces(self) -> PieceStore:
        room = None if self._scratch is None else unnamed_values(self._scratch, self._layout.elements)
        return PieceStore(self._layout, None, momentum=False, into=room)

    async def _judged(self, state: FetchedState) -> FetchedState | None:
        """Return a state with its losses; None: it is refused. A group's state is decided by its digest."""
        if not bool(torch.isfinite(state.params).all()):
            self._leave_out(state.donors, "it holds NaN or infinity")
            return None
        if self._group or self._weighing is None:
            return state
        found = await self._weighing.weigh(state.params, state.round)
        if found.impossible:
            self._leave_out(state.donors, found.impossible)
            return None
        return FetchedState(state.params, state.donors, state.round, found.losses)

    async def _mean(self, taken: Sequence[FetchedState]) -> FetchedModel:
        """Return the mean of the states that do not make it clearly worse."""
        taken = await self._without_outliers(taken)
        best, *others = sorted(taken, key=lambda one: 0.0 if one.losses is None else one.losses.mean)
        used, params, losses = [best], best.params, best.losses
        for one in others:
            mean = await self._offload(partial(torch.lerp, params, one.params, 1 / (len(used) + 1)))
            if losses is not None and self._weighing is not None:
                found = (await self._weighing.weigh(mean, one.round)).losses
                if found is None or clearly_better(
                    losses, found
                ):  # two partners just after an exchange are nearly equal
                    with_it = "no number" if found is None else f"{found.mean:.4f}"
                    told = f"with it the loss on {len(losses.windows)} windows of our own is {with_it} nats a token"
                    self._leave_out(one.donors, f"{told}, without it {losses.mean:.4f}")
                    continue
                losses = found
            params = mean
            used.append(one)
        donors = tuple(donor for one in used for donor in one.donors)
        return FetchedModel(params, donors, tuple(one.round for one in used), dict(self._left_out))

    async def _without_outliers(self, taken: Sequence[FetchedState]) -> Sequence[FetchedState]:
        """Return the states that do not lie apart from the others. All of them where they have been weighed."""
        if len(taken) < COMPARABLE or any(one.losses is not None for one in taken):
            return taken
        apart = states_apart(await self._offload(lambda: _distances([one.params for one in taken])))
        for number, why in apart.items():
            self._leave_out(taken[number].donors, why)
        return [one for number, one in enumerate(taken) if number not in apart]

    def _leave_out(self, donors: Sequence[PeerId], why: str) -> None:
        self._left_out |= dict.fromkeys(donors, why)
        self._context.say(f"the state of {', '.join(donors)} is not used: {why}")


def _distances(states: Sequence[torch.Tensor]) -> list[list[float]]:
    """Return the Euclidean distances between flat states."""
    return [[float(torch.dist(one, other)) for other in states] for one in states]
