"""Who can donate a state, what they offer, and which of their offers go together.

A donor has a complete state: it trains, is paused, has finished, or is a node of the operator. A node has the first
state, or the newest that it kept. The first one counts only in a run that is not past its first rounds, as far as
anybody tells, and a kept one only within `KEPT_ROUNDS` of those who train. In a pair run every donor's pieces are as
good as another's, within `OLD_ROUNDS`. In a group all pieces are of one state, so only donors whose indices name the
same bytes are used together: the state that pieces are here of already, else the one that most peers offer, of two the
later. Donors of a group that differ are asked for a fresh snapshot: they may only have been asked at
different times."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from peer.errors import BadPayload, ExchangeError, PartnerRefused
from peer.ports.transport import Transport
from peer.protocol.messages import NODES, PeerId, PeerRecord, StateIndex, Status
from peer.protocol.model.layout import Layout
from peer.protocol.schedule import lower_median
from peer.state.snapshot import check_index, mark_of
from peer.state.transfer.scheduler import DonorRates

MAX_DONORS = 6
"""Asked for pieces at once. Each has one in flight, so this bounds what a kill of the joiner costs."""
MAX_ASKED = 16
OLD_ROUNDS = 20
"""Pair runs: a piece this many rounds behind the newest donor is still taken."""
KEPT_ROUNDS = 50
"""A node's kept state this many rounds behind those who train is still begun with: as an own checkpoint is."""
FIRST_ROUNDS = 2
"""Up to this round the very first state is as good as any."""
ASK_S = 10.0
PATIENCE_S = 1.0
"""After the first offer the others have so long to make theirs; who comes later is recruited."""
AGAIN_S = 0.3
ASKED_AGAIN = 5
"""A donor that is copying its state needs a moment."""

COMPLETE = (Status.TRAINING, Status.PAUSED, Status.FINISHED, *NODES)


@dataclass(frozen=True, slots=True)
class SnapshotOffer:
    """A snapshot that a donor would give."""

    donor: PeerRecord
    index: StateIndex

    @property
    def mark(self) -> str:
        """Names the bytes."""
        return mark_of(self.index.pieces)


@dataclass(slots=True)
class Offers:
    """What asking came to."""

    offered: list[SnapshotOffer] = field(default_factory=list)
    why_not: dict[PeerId, str] = field(default_factory=dict)
    eta_s: float = 0.0
    """The soonest that a busy donor said."""

    def busy_for(self, eta_s: float) -> None:
        """A donor says that it is busy for so long."""
        self.eta_s = min(self.eta_s or eta_s, eta_s)

    def problem(self) -> str:
        """One line for a person."""
        some = [f"{peer}: {why}" for peer, why in self.why_not.items()]
        return "; ".join(some[:3]) or "no peer with a complete state is in the directory yet"


def live_round(records: Iterable[PeerRecord]) -> int | None:
    """The round that the run is in: the lower median of those who train or have finished. None: nobody is known to."""
    return lower_median(r.round for r in records if r.status in (Status.TRAINING, Status.FINISHED))


def candidates(records: Collection[PeerRecord], rates: DonorRates, rng: random.Random) -> list[PeerRecord]:
    """Those with a complete state, the best first: dialable, training, fast as far as was measured."""
    shuffled = rng.sample(list(records), len(records))
    able = [record for record in shuffled if record.status in COMPLETE]
    able.sort(key=lambda r: (not r.reachable, r.status in NODES, -rates.of(r.peer_id)))
    return able[:MAX_ASKED]


class DonorQuery:
    """Asks donors what they offer; remembers who offered what is useless. `fresh`: their state of this moment."""

    def __init__(self, transport: Transport, layout: Layout, *, momentum: bool, fresh: bool = False) -> None:
        self._fresh = fresh
        self._transport = transport
        self._layout = layout
        self._momentum = momentum
        self._wanted = ""
        self.useless: set[PeerId] = set()
        """Donors whose index is not one of this run."""

    async def ask(self, donors: Sequence[PeerRecord], run_round: int, wanted: str = "") -> Offers:
        """All at once, without those that hold up the others (`PATIENCE_S`); in groups again, until they agree, or one
        still has the state `wanted`, or it is clear that they will not."""
        self._wanted = wanted
        offers = await self._ask_all(donors, run_round, fresh=self._fresh)
        for _ in range(ASKED_AGAIN if self._momentum else 0):
            marks = {offered.mark for offered in _of_peers(offers.offered)}
            if len(marks) < 2 or wanted in marks:
                break
            await asyncio.sleep(AGAIN_S)
            offers = await self._ask_all([offered.donor for offered in offers.offered], run_round, fresh=True)
        return offers

    async def _ask_all(self, donors: Sequence[PeerRecord], run_round: int, *, fresh: bool) -> Offers:
        offers = Offers()
        async with asyncio.TaskGroup() as asking:
            asked = {
                asking.create_task(self._ask(donor, run_round, offers, fresh=fresh)): donor.peer_id
                for donor in donors
                if donor.peer_id not in self.useless
            }
            waiting = set(asked)
            while waiting and not offers.offered:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if waiting:
                _, waiting = await asyncio.wait(waiting, timeout=PATIENCE_S)
            for task in waiting:
                task.cancel()
                offers.why_not[asked[task]] = "has not answered yet"
        return offers

    async def _ask(self, donor: PeerRecord, run_round: int, offers: Offers, *, fresh: bool) -> None:
        try:
            index = await self._described(donor, fresh)
            check_index(index, self._layout, momentum=self._momentum)
        except BadPayload as error:
            self.useless.add(donor.peer_id)
            offers.why_not[donor.peer_id] = str(error)
        except ExchangeError as error:
            offers.why_not[donor.peer_id] = str(error)
            if isinstance(error, PartnerRefused) and error.eta_s > 0:
                offers.busy_for(error.eta_s)
        else:
            if why := _too_old(donor, index.round, run_round):
                offers.why_not[donor.peer_id] = why
            else:
                offers.offered.append(SnapshotOffer(donor, index))

    async def _described(self, donor: PeerRecord, fresh: bool) -> StateIndex:
        """Its index; asked again while it makes its copy."""
        for left in reversed(range(ASKED_AGAIN)):
            try:
                return await self._transport.describe_state(donor, ASK_S, fresh, self._wanted)
            except PartnerRefused as refusal:
                if refusal.code != "no_state" or not left:
                    raise
            await asyncio.sleep(AGAIN_S)
        raise AssertionError("the last try returns or raises")


def _too_old(donor: PeerRecord, round_: int, run_round: int) -> str:
    """Why nobody should begin with this state of a node of the operator, for a person; empty: they may."""
    if donor.status not in NODES:
        return ""
    known = max(run_round, donor.round)  # a node remembers what it has seen announced
    if round_ == 0 and known > FIRST_ROUNDS:
        return f"has only the first state, and the run has come to round {known}"
    if round_ > 0 and run_round - round_ > KEPT_ROUNDS:
        return f"has kept the state of round {round_}, and the run has come to round {run_round}"
    return ""


def compatible_offers(offered: Sequence[SnapshotOffer], *, momentum: bool, wanted: str = "") -> list[SnapshotOffer]:
    """Those whose pieces may be mixed. Peers that train are preferred to a node with a first or kept state, in groups
    the state `wanted` to all others."""
    if not offered:
        return []
    if momentum:
        by_mark: dict[str, list[SnapshotOffer]] = {}
        for one in offered:
            by_mark.setdefault(one.mark, []).append(one)
        chosen = {one.mark for one in _of_peers(offered)}
        return by_mark.get(wanted) or max((by_mark[mark] for mark in sorted(chosen)), key=_weight)
    peers = _of_peers(offered)
    newest = max(one.index.round for one in peers)
    return [one for one in peers if one.index.round >= newest - OLD_ROUNDS]


def _of_peers(offered: Sequence[SnapshotOffer]) -> list[SnapshotOffer]:
    """Those of peers; of nodes if there is no other."""
    return [one for one in offered if one.donor.status not in NODES] or list(offered)


def _weight(some: Sequence[SnapshotOffer]) -> tuple[int, int, str]:
    return len(some), max(offered.index.round for offered in some), some[0].mark
