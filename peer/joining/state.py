"""Obtains the state that a peer begins with: from its own checkpoint, or from donors.

`peer.protocol.policy.donors` decides, and this module asks donors and moves bytes. Several donors send pieces in
parallel (`peer.state.transfer.download`). Received pieces survive the loss of a donor and a kill of this process. In a
pair run pieces may come from any donor whose round is near the newest donor's. In a group all pieces belong to one
state, so that the fetch starts over when no donor holds that state any more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from peer.aio.tasks import background_task
from peer.aio.threads import Offload, inline
from peer.errors import PeerError, StateError
from peer.joining.context import JoinContext
from peer.joining.donors import DonorQuery
from peer.joining.fetch_terms import FetchTerms
from peer.joining.messages import check_clock, unreachable, waiting_reason
from peer.joining.resume import JoinedState, OwnCheckpoint, StateTransfer, newest_checkpoint
from peer.joining.weighing import StateWeighing
from peer.observe.formatting import amount
from peer.observe.progress import WaitProgress, ignore_progress
from peer.outer.state import OuterState
from peer.protocol.messages import PeerId, StateIndex
from peer.protocol.model.layout import Layout
from peer.protocol.policy.donors import (
    RETRY_S,
    SETTLE_S,
    DonorPolicy,
    Offers,
    SingleStates,
    SnapshotOffer,
    StateChoice,
    WeighedState,
    judge_checkpoint,
    keeps_piece,
    live_round,
    recruit_pauses,
    retry_wait_s,
)
from peer.run.home import RunFolder
from peer.state.checkpoint import CheckpointStore
from peer.state.transfer.download import Download, Outcome, TransferFlow
from peer.state.transfer.pieces import PieceStore, shares
from peer.state.unnamed import unnamed_values

FETCHING = "fetching the state"
TRANSFER = "transfer"
"""Folder of the received pieces, in the run's folder."""


async def obtain_state(
    context: JoinContext,
    layout: Layout,
    checkpoints: CheckpointStore,
    terms: FetchTerms,
    *,
    progress: WaitProgress = ignore_progress,
    offload: Offload = inline,
    into: Tensor | None = None,
) -> JoinedState:
    """Return the own checkpoint if it is recent or no donor exists (`peer.joining.resume`), or else a state fetched
    from donors. Waits for donors, and reports what it waits for.

    `offload`: checks and writes pieces in a thread. `into`: tensor that receives outer_params, flat fp32. Raises
    StateError when no donor gave anything within the patience of `terms`, SwarmUnreachable when no address answered."""
    own = await newest_checkpoint(context.run_id, layout, checkpoints, context.say, offload, into)
    folder = None if context.folder is None else context.folder.path / TRANSFER
    pieces = PieceStore(layout, folder, momentum=terms.momentum, into=into)
    joining = StateFetch(context, layout, pieces, terms, progress, offload)
    if own is not None:
        why = await joining.refetch_reason(own)
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
    """The whole state of one donor, for comparison with the mixed one. `params`: flat fp32."""

    params: Tensor
    round: int
    donor: PeerId


class StateFetch:
    """One fetch of a state, over as many attempts as it needs."""

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
        self._directory = context.directory
        self._transport = context.transport
        self._clock = context.clock
        self._say = context.say
        self._rng = context.rng
        self._run_id = context.run_id
        self._progress = progress
        self._offload = offload
        self._pieces = pieces
        self._knowledge = terms.knowledge
        self._policy = DonorPolicy(
            momentum=terms.momentum,
            fragments=len(layout.fragments),
            nodes=terms.knowledge.nodes,
            proven=terms.knowledge.proven,
            patience_s=terms.patience_s,
        )
        self._donor_query = DonorQuery(context.transport, layout, self._policy, fresh=terms.fresh)
        self._folder = context.folder
        self._weighing = StateWeighing(terms, context.say, offload)
        self._outcome = Outcome()
        self._said = self._said_choice = ""
        self._fetching_s = 0.0
        """Seconds in which pieces came, without the waits for a donor."""
        self._wanted = ""
        """In a group: name of the state to which the received pieces belong."""

    # -- the own checkpoint --------------------------------------------------------------------------------------------

    async def refetch_reason(self, own: OwnCheckpoint) -> str:
        """Return why the own checkpoint is too old to resume from. Empty: it is used, because it is recent or no donor
        exists."""
        until = self._now() + SETTLE_S
        while not (records := (await self._directory.peers()).values()) and self._now() < until:
            await self._clock.sleep(RETRY_S / 2)
        verdict = judge_checkpoint(own.name, own.state.round, live_round(records), self._knowledge.furthest() or None)
        if verdict.resumes:
            own.choose(verdict.why)
            return ""
        own.leave(verdict.why)
        offers = await self._offers()
        if offers.offered:
            return f"{verdict.why}: fetching the state"
        own.choose_stale(offers.problem())
        return ""

    # -- fetching ------------------------------------------------------------------------------------------------------

    async def state(self, own: OwnCheckpoint | None) -> JoinedState:
        """Fetch a state until it is complete and passes the checks. Raises StateError."""
        self._wanted = self._pieces.mark
        self._policy.begin(self._now())
        if had := self._pieces.done:
            self._say(f"{amount(had, 'bytes')} of the state are here from before")
        self._progress("asking who gives the state", 0.0, None, "s")
        while True:
            offers = await self._offers()
            choice = self._policy.choose(offers.offered, self._wanted, self._knowledge.digests())
            if choice.offers and not self._pieces.complete:
                self._say_choice(choice)
                before = self._pieces.done
                await self._fetch(choice.offers)
                if self._pieces.done > before:
                    self._policy.progressed(self._now())
            if self._pieces.complete and await self._passes():
                return self._first_state(own)
            if self._policy.gives_up(self._now()):
                raise self._no_donor()
            await self._wait(offers)

    @property
    def donors(self) -> list[PeerId]:
        """The peers that gave pieces of the state, sorted by id."""
        return sorted(self._outcome.given)

    async def _offers(self) -> Offers:
        records = (await self._directory.peers()).values()
        policy = self._policy
        policy.ban_donors(self._outcome.wrong)
        free = policy.available(records, self._now())
        run_round = policy.run_round(records, self._knowledge.furthest())
        offers = await self._donor_query.query(policy.candidates(free, self._rng), run_round, self._wanted)
        await self._knowledge.ask_start([one.donor for one in offers.offered if one.index.round > 0])
        offers.bound(self._knowledge.furthest())
        offers.ensure_first(self._knowledge.digests())
        return offers

    def _say_choice(self, choice: StateChoice) -> None:
        if choice.why and choice.why != self._said_choice:
            self._say(f"not all donors' states are taken: {choice.why}")
        self._said_choice = choice.why

    async def _fetch(self, chosen: list[SnapshotOffer]) -> None:
        """Run one download, until it is complete or no donor is left."""
        await self._forget_others(chosen)
        told = partial(self._told, pieces=self._pieces)
        transfer = Download(self._transport, self._pieces, self._policy.rates, self._outcome, told, self._offload)
        for offered in self._policy.take_places(chosen):
            transfer.add(offered.donor, offered.index)
        began = self._now()
        async with background_task(self._recruit(transfer, chosen[0])):
            await transfer.run()
        self._fetching_s += self._now() - began
        self._policy.lost(self._outcome.left, self._now(), all_now=True)

    async def _forget_others(self, chosen: list[SnapshotOffer]) -> None:
        """Drop the pieces that do not fit the donors' present state. In a group also fill in pieces of zeros, which
        need no transfer."""
        if not self._policy.momentum:
            newest = max(offered.index.round for offered in chosen)
            self._pieces.retain(lambda number, held: keeps_piece(held.round, newest))
            return
        index, pieces = chosen[0].index, self._pieces
        self._wanted = chosen[0].mark
        if gone := pieces.retain(lambda number, held: held.piece.digest == index.pieces[number].digest):
            self._say(
                f"the group has moved on from the state that was being fetched: {amount(gone, 'bytes')} start over"
            )
        missing = [number for number in range(len(index.pieces)) if number not in pieces.held]

        def take_zeros() -> None:
            pieces.begin_state(self._wanted)
            for number in missing:
                pieces.put_zeros(number, index.pieces[number], index.round)

        await self._offload(take_zeros)

    async def _recruit(self, transfer: Download[StateIndex], first: SnapshotOffer) -> None:
        """Add donors that appear or return during the download. Runs until cancelled."""
        policy = self._policy
        for pause_s in recruit_pauses():
            await self._clock.sleep(pause_s)
            left_s = transfer.left_s()
            policy.lost(self._outcome.left, self._now())
            if not policy.has_place(transfer.donors, left_s):
                continue
            offers = await self._offers()
            fitting = policy.fitting(offers.offered, first, left_s)
            for offered in policy.take_places(fitting, transfer.donors):
                transfer.add(offered.donor, offered.index)

    # -- checks of the state -------------------------------------------------------------------------------------------

    async def _passes(self) -> bool:
        """Check the losses of a pair run's state. If it fails, replace it by the best whole state of a single donor
        that passes. A group's state was checked by its digest."""
        if self._policy.momentum:
            return True
        params, round_, givers = self._pieces.state()[0], self._round(), self.donors
        self._progress("checking the fetched state", 0.0, None, "s")
        found = await self._weighing.weigh(params, round_)
        if not found.doubted:
            return True
        if found.impossible:
            for giver in givers if len(givers) == 1 else ():
                self._policy.refuse(giver, self._now())
        best = await self._best_single(None if found.impossible else found)
        if best is not None or found.impossible:
            self._weighing.refused(_named(givers), round_, found.doubted)
        if best is not None:
            await self._offload(lambda: self._pieces.adopt_state(best.params, best.round))
            self._outcome.given.clear()
            self._outcome.count_given(best.donor, self._pieces.nbytes)
            return True
        if not found.impossible:
            return True  # no single donor has a better state
        self._pieces.retain(lambda number, held: False)
        self._outcome.given.clear()
        self._say("no state that donors give passes: waiting for another one")
        return False

    async def _best_single(self, worst: WeighedState | None) -> SingleState | None:
        """Fetch whole states of single donors until enough of them pass. Return the best of those that are clearly
        better than `worst`, or None."""
        best, comparison = None, SingleStates(worst)
        for offered in self._policy.singles(await self._offers()):
            state = await self._single(offered)
            if state is None:
                continue
            self._progress(f"checking the state of {state.donor[-8:]} alone", 0.0, None, "s")
            found = await self._weighing.weigh(state.params, state.round)
            if found.impossible:
                self._weighing.refused(state.donor, state.round, found.impossible)
                self._policy.refuse(state.donor, self._now())
                continue
            if comparison.is_best(found):
                best = state
            if comparison.decided:
                break
        return best

    async def _single(self, offered: SnapshotOffer) -> SingleState | None:
        """Fetch the whole state of one donor. None: the donor did not complete it."""
        room = await self._offload(lambda: _room(self._folder, self._layout))
        pieces, outcome = PieceStore(self._layout, None, momentum=False, into=room), Outcome()
        told = partial(self._told, pieces=pieces, what=f"{FETCHING} of {offered.donor.peer_id[-8:]} alone")
        transfer = Download(self._transport, pieces, self._policy.rates, outcome, told, self._offload)
        transfer.add(offered.donor, offered.index)
        await transfer.run()
        self._outcome.wrong.update(outcome.wrong)
        return SingleState(pieces.state()[0], offered.index.round, offered.donor.peer_id) if pieces.complete else None

    def _round(self) -> int:
        """Return the round of the oldest piece."""
        return min(held.round for held in self._pieces.held.values())

    def _told(self, flow: TransferFlow, pieces: PieceStore, what: str = FETCHING) -> None:
        self._progress(f"{what} ({flow})", pieces.done + flow.arriving, pieces.nbytes, "bytes")

    async def _wait(self, offers: Offers) -> None:
        """Report why the fetch waits, and sleep until the next attempt."""
        patience_s = self._policy.patience_s
        self._progress("waiting for a donor", self._policy.waited_s(self._now()), patience_s, "s")
        check_clock(self._directory.contact())
        left = "; ".join(f"{peer}: {why}" for peer, why in list(self._outcome.left.items())[:3])
        waiting = waiting_reason(self._directory.contact(), left or offers.problem())
        if waiting != self._said:
            self._say(f"waiting for a donor, at most {patience_s:.0f} s: {waiting}")
            self._said = waiting
        await self._clock.sleep(retry_wait_s(offers.eta_s))

    def _no_donor(self) -> PeerError:
        contact = self._directory.contact()
        if contact.tried and all(contact.tried.values()):
            return unreachable(contact, self._run_id, self._said, self._policy.patience_s)
        return StateError(
            f"no donor gave a state within {self._policy.patience_s:.0f} s: {self._said}",
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
    """Return a tensor in an unnamed file on disk that holds a state. None: there is no folder or no space, and the
    state is held in memory."""
    if folder is None:
        return None
    try:
        return unnamed_values(folder.path, layout.elements)
    except OSError:
        return None
