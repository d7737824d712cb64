"""From a ticket to a complete state: the manifest from any peer, the state from an own checkpoint or from donors.

Several donors bring pieces at once (`peer.state.transfer.download`). Pieces that are here stay over a lost donor and
over a kill of this process. A pair run takes them from whatever donor, of rounds within `OLD_ROUNDS` of the newest
donor's; a group's are all of one state, so when every donor has moved on from it, the fetch starts over, saying so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from peer.aio.tasks import background_task
from peer.aio.threads import Offload, inline
from peer.codes import AnyCode, Code
from peer.errors import ClockWrong, JoinRefused, PartnerRefused, PeerError, StateError
from peer.joining.context import JoinContext
from peer.joining.donors import DonorPlaces, DonorQuery, candidates, live_round
from peer.joining.fetch_terms import FetchTerms
from peer.joining.messages import check_clock, unreachable, waiting_for
from peer.joining.offers import OLD_ROUNDS, Offers, SnapshotOffer, compatible_offers
from peer.joining.resume import JoinedState, OwnCheckpoint, StateTransfer, newest_checkpoint, why_fetch
from peer.joining.weighing import StateWeighing, WeighedState
from peer.observe.formatting import amount
from peer.observe.progress import WaitProgress, untold
from peer.outer.state import OuterState
from peer.protocol.messages import PeerId, StateIndex
from peer.protocol.model.layout import Layout
from peer.run.home import RunFolder
from peer.state.checkpoint import CheckpointStore
from peer.state.transfer.download import Download, Outcome, TransferFlow
from peer.state.transfer.pieces import PieceStore, shares
from peer.state.transfer.scheduler import DonorRates
from peer.state.unnamed import unnamed_values

RETRY_S = 1.0
RECRUIT_S = 5.0
"""How often donors that came, or came back, are looked for while others bring pieces; at first sooner, for those that
had to copy their state."""
RECRUIT_FIRST_S = 0.5
BACKOFF_S = 10.0
"""A donor that was lost is asked again after this."""
REFUSED_S = 60.0
"""A donor whose state was refused is asked again after this: it may have another one by then."""
SETTLE_S = 3.0
"""With an own checkpoint: how long nobody else may be in the directory before we go on alone."""
SINGLES, MOST_SINGLES = 2, 8
"""Whole states of single donors that have to pass before the best is taken, and that are fetched at most."""
CALL_TIMEOUT_S = 10.0
ASKED_AT_ONCE = 4
"""For the manifest; the first to answer is enough."""
NOBODY_YET = "nobody of this run is in the directory yet"
FETCHING = "fetching the state"
TRANSFER = "transfer"
"""Folder of the pieces that are here, in the run's folder."""

WITH_INVITATION = "Get an invitation for your key (peer id show) from the operator, and give it: --invitation @FILE"
FINAL_REFUSALS: dict[AnyCode, str] = {
    Code.WIRE_VERSION: "Update this program: peer help install update",
    Code.BANNED: "Ask the operator of the run.",
    Code.CLOCK: ClockWrong.fix,
    Code.UNINVITED: WITH_INVITATION,
    Code.INVITATION_EXPIRED: WITH_INVITATION,
    Code.INVITATION_REVOKED: "Ask the operator of the run.",
    Code.INVITATION_FOREIGN: WITH_INVITATION,
    Code.INVITATION_ALTERED: WITH_INVITATION,
}
"""Refusals that asking again does not change, and what does."""


def join_refusal(refusal: PartnerRefused) -> PeerError:
    kind = ClockWrong if refusal.code == Code.CLOCK else JoinRefused
    return kind(f"every peer of the run refuses this one: {refusal.reason}", FINAL_REFUSALS[refusal.code])


async def obtain_state(
    context: JoinContext,
    layout: Layout,
    checkpoints: CheckpointStore,
    terms: FetchTerms,
    *,
    progress: WaitProgress = untold,
    offload: Offload = inline,
    into: Tensor | None = None,
) -> JoinedState:
    """An own checkpoint where that is recent or all there is (`peer.joining.resume`), else a state from donors; waits
    for them, saying so. Pieces that are here survive a kill in the run's folder. `offload`: where pieces are checked
    and written. `into`: where outer_params are to lie, flat fp32.

    Raises StateError when no donor gave anything for the time of `terms`, SwarmUnreachable when nobody answered."""
    own = await newest_checkpoint(context.run_id, layout, checkpoints, context.say, offload, into)
    folder = None if context.folder is None else context.folder.path / TRANSFER
    pieces = PieceStore(layout, folder, momentum=terms.momentum, into=into)
    joining = StateFetch(context, layout, pieces, terms, progress, offload)
    if own is not None:
        why = await joining.why_fetch(own)
        if not why:
            await offload(own.fill)
            return own.state
        context.say(why)
    await offload(pieces.load)
    state = await joining.state(own)
    await offload(pieces.clear)
    return state


@dataclass(frozen=True, slots=True)
class SingleState:
    """The whole state of one donor."""

    params: Tensor
    round: int
    donor: PeerId


class StateFetch:
    """One fetch of a state, over as many attempts as it takes."""

    def __init__(
        self,
        context: JoinContext,
        layout: Layout,
        pieces: PieceStore,
        terms: FetchTerms,
        progress: WaitProgress,
        offload: Offload,
    ) -> None:
        self._layout = layout
        self._momentum = terms.momentum
        self._directory = context.directory
        self._transport = context.transport
        self._clock = context.clock
        self._say = context.say
        self._rng = context.rng
        self._run_id = context.run_id
        self._patience_s = terms.patience_s
        self._progress = progress
        self._offload = offload
        self._pieces = pieces
        self._rates = DonorRates()
        self._knows = terms.knows
        self._asking = DonorQuery(
            context.transport,
            layout,
            momentum=terms.momentum,
            fresh=terms.fresh,
            first=terms.knows.proven | terms.knows.nodes,
        )
        self._places = DonorPlaces(terms.knows.nodes, len(layout.fragments), terms.momentum)
        self._folder = context.folder
        self._weighing = StateWeighing(terms, context.say, offload)
        self._refused: dict[PeerId, float] = {}
        """Donors whose whole state failed when it was weighed, and until when none is taken of them."""
        self._outcome = Outcome()
        self._left_at: dict[PeerId, float] = {}
        self._said = ""
        self._fetching_s = 0.0
        """Seconds in which pieces came, without the waits for a donor."""
        self._wanted = ""
        """Of a group: names the state that pieces are here of."""

    # -- to resume or not --------------------------------------------------------------------------------------------

    async def why_fetch(self, own: OwnCheckpoint) -> str:
        """Why the own checkpoint is too old to go on from; empty: it is not, or there is nobody to fetch from."""
        until = self._now() + SETTLE_S
        while not (records := (await self._directory.peers()).values()) and self._now() < until:
            await self._clock.sleep(RETRY_S / 2)
        why, chosen = why_fetch(own, live_round(records), self._knows.furthest() or None)
        own.choose(chosen)
        if not why:
            return ""
        offers = await self._offers()
        if compatible_offers(offers.offered, momentum=self._momentum):
            return why
        own.choose(own.stale(offers.problem()))
        return ""

    # -- fetching ----------------------------------------------------------------------------------------------------

    async def state(self, own: OwnCheckpoint | None) -> JoinedState:
        """Raises StateError."""
        self._wanted = self._pieces.mark
        deadline, had = self._now() + self._patience_s, self._pieces.done
        if had:
            self._say(f"{amount(had, 'bytes')} of the state are here from before")
        self._progress("asking who gives the state", 0.0, None, "s")
        while True:
            offers = await self._offers()
            chosen = compatible_offers(
                offers.offered,
                momentum=self._momentum,
                wanted=self._wanted,
                proven=self._knows.proven,
                digests=self._knows.digests(),
            )
            if chosen and not self._pieces.complete:
                before = self._pieces.done
                await self._fetch(chosen)
                if self._pieces.done > before and not self._refused:
                    deadline = self._now() + self._patience_s
            if self._pieces.complete and await self._passes():
                return self._first_state(own)
            if self._now() >= deadline:
                raise self._no_donor()
            await self._wait(offers, deadline)

    @property
    def donors(self) -> list[PeerId]:
        """Those that gave pieces of the state, in order."""
        return sorted(self._outcome.given)

    async def _offers(self) -> Offers:
        records = (await self._directory.peers()).values()
        now = self._now()
        wrong, away = self._outcome.wrong, self._left_at | self._refused
        free = [r for r in records if r.peer_id not in wrong and away.get(r.peer_id, 0.0) <= now]
        most = self._knows.furthest()
        # one that names an impossible round, or gave an impossible state, must not make the first state look old
        believed = [r for r in records if r.peer_id not in self._refused and (most is None or r.round <= most)]
        run_round = live_round(believed) or 0
        offers = await self._asking.ask(candidates(free, self._rates, self._rng), run_round, self._wanted)
        await self._knows.ask_start([one.donor for one in offers.offered if one.index.round > 0])
        offers.bound(self._knows.furthest())
        offers.ensure_first(self._knows.digests())
        return offers

    async def _fetch(self, chosen: list[SnapshotOffer]) -> None:
        """One attempt: until all is here or no donor is left."""
        await self._forget_others(chosen)
        told = partial(self._told, pieces=self._pieces)
        transfer = Download(self._transport, self._pieces, self._rates, self._outcome, told, self._offload)
        for offered in self._places.free(chosen, ()):
            transfer.add(offered.donor, offered.index)
        began = self._now()
        async with background_task(self._recruit(transfer, chosen[0])):
            await transfer.run()
        self._fetching_s += self._now() - began
        self._left_at = dict.fromkeys(self._outcome.left, self._now() + BACKOFF_S)

    async def _forget_others(self, chosen: list[SnapshotOffer]) -> None:
        """Drop the pieces that do not go with what the donors have now; take those that need no fetching."""
        if not self._momentum:
            newest = max(offered.index.round for offered in chosen)
            self._pieces.keep(lambda number, held: abs(held.round - newest) <= OLD_ROUNDS)
            return
        index, pieces = chosen[0].index, self._pieces
        self._wanted = chosen[0].mark
        if gone := pieces.keep(lambda number, held: held.piece.digest == index.pieces[number].digest):
            self._say(
                f"the group has moved on from the state that was being fetched: {amount(gone, 'bytes')} start over"
            )
        missing = [number for number in range(len(index.pieces)) if number not in pieces.held]

        def take_zeros() -> None:
            pieces.of_state(self._wanted)
            for number in missing:
                pieces.put_zeros(number, index.pieces[number], index.round)

        await self._offload(take_zeros)

    async def _recruit(self, transfer: Download[StateIndex], first: SnapshotOffer) -> None:
        """Add donors that came later, or came back, until cancelled."""
        pause = RECRUIT_FIRST_S
        while True:
            await self._clock.sleep(pause)
            pause = min(2 * pause, RECRUIT_S)
            now, left_s = self._now(), transfer.left_s()
            self._left_at = {p: self._left_at.get(p, now + BACKOFF_S) for p in self._outcome.left}
            if not self._places.left(transfer.donors, left_s):
                continue
            offers = await self._offers()
            fitting = self._places.fitting(offers.offered, first, left_s)
            for offered in self._places.free(fitting, transfer.donors):
                transfer.add(offered.donor, offered.index)

    # -- is it good? -------------------------------------------------------------------------------------------------

    async def _passes(self) -> bool:
        """Weigh the state of a pair run. One that fails gives way to the best whole state of a single donor, if one
        passes. A group's state is decided by its digest."""
        if self._momentum:
            return True
        params, round_, givers = self._pieces.state()[0], self._round(), self.donors
        self._progress("checking the fetched state", 0.0, None, "s")
        found = await self._weighing.weigh(params, round_)
        if not found.doubted:
            return True
        if found.impossible:
            self._refused |= dict.fromkeys(givers if len(givers) == 1 else (), self._now() + REFUSED_S)
        best = await self._best_single(None if found.impossible else found)
        if best is not None or found.impossible:
            self._weighing.refused(_named(givers), round_, found.doubted)
        if best is not None:
            await self._offload(lambda: self._pieces.take(best.params, best.round))
            self._outcome.given.clear()
            self._outcome.count_given(best.donor, self._pieces.nbytes)
            return True
        if not found.impossible:
            return True  # it is no worse than what others have
        self._pieces.keep(lambda number, held: False)
        self._outcome.given.clear()
        self._say("no state that donors give passes: waiting for another one")
        return False

    async def _best_single(self, worst: WeighedState | None) -> SingleState | None:
        """Fetch whole states of single donors, of different networks, until `SINGLES` pass. Return the best of those
        that are clearly better than `worst`."""
        offers, best, passed = await self._offers(), None, 0
        near = compatible_offers(offers.offered, momentum=False, proven=self._knows.proven)
        for offered in [*near, *(one for one in offers.offered if one not in near)][:MOST_SINGLES]:
            state = await self._single(offered)
            if state is None:
                continue
            self._progress(f"checking the state of {state.donor[-8:]} alone", 0.0, None, "s")
            found = await self._weighing.weigh(state.params, state.round)
            if found.impossible:
                self._weighing.refused(state.donor, state.round, found.impossible)
                self._refused[state.donor] = self._now() + REFUSED_S
                continue
            if worst is None or found.better_than(worst):
                best, worst = state, found
            passed += 1
            if passed == SINGLES:
                break
        return best

    async def _single(self, offered: SnapshotOffer) -> SingleState | None:
        """Fetch the whole state of one donor; None: it did not give it."""
        room = await self._offload(lambda: _room(self._folder, self._layout))
        pieces, outcome = PieceStore(self._layout, None, momentum=False, into=room), Outcome()
        told = partial(self._told, pieces=pieces, what=f"{FETCHING} of {offered.donor.peer_id[-8:]} alone")
        transfer = Download(self._transport, pieces, self._rates, outcome, told, self._offload)
        transfer.add(offered.donor, offered.index)
        await transfer.run()
        self._outcome.wrong.update(outcome.wrong)
        return SingleState(pieces.state()[0], offered.index.round, offered.donor.peer_id) if pieces.complete else None

    def _round(self) -> int:
        """Return the round of the oldest piece."""
        return min(held.round for held in self._pieces.held.values())

    def _told(self, flow: TransferFlow, pieces: PieceStore, what: str = FETCHING) -> None:
        self._progress(f"{what} ({flow})", pieces.done + flow.arriving, pieces.nbytes, "bytes")

    async def _wait(self, offers: Offers, deadline: float) -> None:
        """Say why, and wait a moment."""
        waited = self._patience_s - (deadline - self._now())
        self._progress("waiting for a donor", max(0.0, waited), self._patience_s, "s")
        check_clock(self._directory.contact())
        left = "; ".join(f"{peer}: {why}" for peer, why in list(self._outcome.left.items())[:3])
        waiting = waiting_for(self._directory.contact(), left or offers.problem())
        if waiting != self._said:
            self._say(f"waiting for a donor, at most {self._patience_s:.0f} s: {waiting}")
            self._said = waiting
        await self._clock.sleep(max(RETRY_S, min(offers.eta_s, BACKOFF_S)))

    def _no_donor(self) -> PeerError:
        contact = self._directory.contact()
        if contact.tried and all(contact.tried.values()):
            return unreachable(contact, self._run_id, self._said, self._patience_s)
        return StateError(
            f"no donor gave a state within {self._patience_s:.0f} s: {self._said}",
            "A peer that trains in this run has to be reachable; the bootstrap node suffices only in the first rounds. "
            "Try again later.",
        )

    def _first_state(self, own: OwnCheckpoint | None) -> JoinedState:
        params, momentum = self._pieces.state()
        outer = OuterState.fresh(self._layout, params)
        if momentum is not None:
            outer = OuterState(self._layout, params, momentum)
        given, round_ = self._outcome.given, self._round()
        most = max(given, key=lambda peer: (given[peer], peer), default=PeerId(""))
        donors = most if len(given) == 1 else f"{len(given)} donors"
        why = f"fetched from {donors} (round {round_}; {shares(given)})"
        if own is not None:
            why += f"; {own.left}"
        return JoinedState(outer, round_, why, StateTransfer(most, sum(given.values()), self._fetching_s))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _named(donors: Sequence[PeerId]) -> str:
    return donors[0] if len(donors) == 1 else f"{len(donors)} donors"


def _room(folder: RunFolder | None, layout: Layout) -> Tensor | None:
    """Return space for a state in a file without a name; None where there is none: it lies in memory."""
    if folder is None:
        return None
    try:
        return unnamed_values(folder.path, layout.elements)
    except OSError:
        return None
