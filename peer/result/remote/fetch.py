"""Fetches states from donors for a guest: in pairs one whole state from each of several donors, in a group the one
common state.

In pairs each state is judged as a joiner judges it (`peer.joining.weighing`): by its loss on windows that only the
guest knows. An implausible loss is refused. The remaining states are averaged greedily, the best first (model soups,
arXiv 2203.05482): a state is left out if including it in the mean raises the loss on these windows by more than chance
explains. A malicious state therefore enters the mean only if it hardly harms it. If states cannot be evaluated, a state
that lies far from the others is left out."""

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
    """One complete state from a donor, or from several donors of a group."""

    params: torch.Tensor
    """Flat, fp32."""
    donors: tuple[PeerId, ...]
    round: int
    losses: StateLosses | None = None
    """Losses of the state on windows that only the guest knows. None: it was not evaluated."""


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """The result: one state, or the mean of several."""

    params: torch.Tensor
    """Flat, fp32."""
    donors: tuple[PeerId, ...]
    rounds: tuple[int, ...]
    """The round of each state in the mean."""
    left_out: dict[PeerId, str] = field(default_factory=dict)
    """Donors whose state was fetched but not used, with the reason for a person."""


class GuestFetch:
    """Fetches and averages states for a process that does not take part in the run. Momentum is not fetched."""

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
        """`group`: all donors have the same state. `weighing`: evaluates the states of a run in pairs; None: they are
        used without evaluation. `scratch`: a folder on whose disk the states are stored; None: they are in memory."""
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
        """Donors whose state is not used, with the reason for a person."""
        self._failed_donors: dict[PeerId, str] = {}
        """Donors whose download ended before the state was complete, with the reason."""
        self._mismatched_offers: dict[PeerId, str] = {}
        """Peers whose latest offer does not match those of the others, with the reason."""

    async def model(self, count: int, wait_s: float) -> FetchedModel:
        """Fetch the states of `count` donors and return their mean; for a group fetch its one state.

        Fewer donors are enough once every donor with an offer has delivered. Raises StateError when nothing arrived for
        `wait_s` seconds, and SourceError when no state that arrived can be used."""
        taken, now = list[FetchedState](), asyncio.get_running_loop().time
        deadline, settled = now() + wait_s, 0.0
        wanted = 1 if self._group else count
        while len(taken) < wanted:
            had = {donor for state in taken for donor in state.donors} | self._left_out.keys()
            offers = [offer for offer in await self._offers() if offer.donor.peer_id not in had]
            offers.sort(key=lambda offer: offer.donor.peer_id in self._failed_donors)  # failed donors come last
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
        """Return the offers that match each other, the newest first."""
        records = (await self._context.directory.peers()).values()
        policy = self._policy
        offers = await self._donor_query.query(policy.candidates(records, self._rng), policy.run_round(records))
        if not offers.offered:
            self._failure_reason = offers.problem()
        choice = policy.choose(offers.offered)
        self._mismatched_offers = policy.left_out(offers, choice)
        return choice.offers

    async def _fetch_states(self, offers: Sequence[SnapshotOffer], most: int, had: int) -> list[FetchedState]:
        """Fetch up to `most` states in parallel: in pairs each from one donor, in a group one state from all donors.

        Once `ENOUGH` states are here, including `had` earlier ones, the remaining downloads get as much further time as
        the first ones took, but at least `GUEST_SETTLE_S` seconds."""
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
        """Fetch one state from these donors. None: they did not deliver it."""
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
        """Return a state with its losses. None: it is refused. A group's state is not evaluated, because its digest is
        verified."""
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
        """Return the mean of the states, without those that make it clearly worse."""
        taken = await self._without_outliers(taken)
        best, *others = sorted(taken, key=lambda one: 0.0 if one.losses is None else one.losses.mean)
        used, params, losses = [best], best.params, best.losses
        for one in others:
            mean = await self._offload(partial(torch.lerp, params, one.params, 1 / (len(used) + 1)))
            if losses is not None and self._weighing is not None:
                found = (await self._weighing.weigh(mean, one.round)).losses
                # "Clearly", because the states of two partners just after an exchange are nearly equal.
                if found is None or clearly_better(losses, found):
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
        """Return the states without those that lie far from the others. States that have losses are all returned."""
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
    """Return the matrix of Euclidean distances between flat states."""
    return [[float(torch.dist(one, other)) for other in states] for one in states]
