"""Who can donate a state, and what they offer when they are asked.

A donor has a complete state: it trains, is paused, has finished, or is a node of the operator. A node has the first
state, or the newest that it kept. The first one counts only in a run that is not past its first rounds, as far as
anybody tells, and a kept one only within `KEPT_ROUNDS` of those who train. Donors of different networks are asked
before several of one. `peer.joining.offers` says which offers go together. Donors of a group that differ are asked for
a fresh snapshot: they may only have been asked at different times."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from peer.codes import Code
from peer.errors import BadPayload, ExchangeError, PartnerRefused
from peer.joining.offers import (
    NETWORKS,
    OLD_ROUNDS,
    Offers,
    SnapshotOffer,
    compatible_offers,
    named_block,
    offers_of_peers,
)
from peer.ports.transport import Transport
from peer.protocol.endpoints import block_of
from peer.protocol.messages import NODES, PeerId, PeerRecord, StateIndex, Status
from peer.protocol.model.layout import Layout
from peer.protocol.schedule import lower_median
from peer.protocol.swarm.block_votes import BlockVotes, in_turn
from peer.state.snapshot import check_index
from peer.state.transfer.scheduler import DonorRates

MAX_DONORS = 6
"""Peers asked for pieces at once. Each has one in flight, so this bounds what a kill of the joiner costs."""
MAX_NODES = 3
"""Nodes of the operator that are asked with them. A home's line is slow, and a node's usually fast."""
CLOSE_SYNCS = 3
"""Pair runs: a node's state goes with peers' pieces up to so many `sync_every` behind. A piece of it makes the whole as
old as it is, by that piece's share."""
SLOW_S = 15.0
"""Pair runs: where peers' pieces take longer than this, the pieces of nodes are taken, too."""
MAX_ASKED = 16
"""Asked at once."""
WAVES = 3
"""So many times others are asked where those who offered are of fewer than `NETWORKS` networks."""
KEPT_ROUNDS = 50
"""A node's kept state this many rounds behind those who train is still begun with: as an own checkpoint is."""
FIRST_ROUNDS = 2
"""Up to this round the very first state is as good as any."""
ASK_S = 10.0
PATIENCE_S = 1.0
"""After the first offer the others have so long to make theirs; who comes later is recruited."""
MORE_S = 1.0
"""Further seconds that they have while the offers are of fewer than `NETWORKS` networks."""
AGAIN_S = 0.3
ASKED_AGAIN = 5
"""A donor that is copying its state needs a moment."""

COMPLETE = (Status.TRAINING, Status.PAUSED, Status.FINISHED, *NODES)


def live_round(records: Iterable[PeerRecord]) -> int | None:
    """The round that the run is in: the lower median of those who train or have finished. None: nobody is known to."""
    return lower_median(r.round for r in records if r.status in (Status.TRAINING, Status.FINISHED))


def candidates(records: Collection[PeerRecord], rates: DonorRates, rng: random.Random) -> list[PeerRecord]:
    """Those with a complete state, the best first: easy to call, training, fast as far as was measured."""
    shuffled = rng.sample(list(records), len(records))
    able = [record for record in shuffled if record.status in COMPLETE]
    able.sort(key=lambda r: (-r.reach, r.status in NODES, -rates.of(r.peer_id)))
    return able


class DonorQuery:
    """Asks donors what they offer; remembers who offered what is useless. `fresh`: their state of this moment.
    `first`: peers that are asked first: the operator's nodes, and those proven to us."""

    def __init__(
        self,
        transport: Transport,
        layout: Layout,
        *,
        momentum: bool,
        fresh: bool = False,
        first: Collection[PeerId] = frozenset(),
    ) -> None:
        self._fresh = fresh
        self._transport = transport
        self._layout = layout
        self._momentum = momentum
        self._first = first
        self._wanted = ""
        self.useless: set[PeerId] = set()
        """Donors whose index is not one of this run."""
        self._silent = Counter[PeerId]()
        """How often each did not answer."""
        self._blocks: dict[PeerId, str] = {}
        """Where each answered last."""

    async def ask(self, donors: Sequence[PeerRecord], run_round: int, wanted: str = "") -> Offers:
        """Ask `MAX_ASKED` at once, without those that hold up the others (`PATIENCE_S`), and more of them until offers
        of `NETWORKS` networks are there. In groups ask again, until they agree, or one still has the state `wanted`,
        or it is clear that they will not."""
        self._wanted = wanted
        offers, asked = Offers(), set[PeerId]()
        for _ in range(WAVES):
            wave = self._next_wave([donor for donor in donors if donor.peer_id not in asked | self.useless])
            if not wave or self._enough(offers, donors):
                break
            asked.update(donor.peer_id for donor in wave)
            offers.add(await self._ask_all(wave, run_round, donors, fresh=self._fresh))
        for _ in range(ASKED_AGAIN if self._momentum else 0):
            marks = {offered.mark for offered in offers_of_peers(offers.offered)}
            if len(marks) < 2 or wanted in marks:
                break
            await asyncio.sleep(AGAIN_S)
            again = [offered.donor for offered in offers.offered]
            offers = await self._ask_all(again, run_round, again, fresh=True)
        return offers

    def _next_wave(self, donors: Sequence[PeerRecord]) -> list[PeerRecord]:
        """Return whom to ask now: who answers before who did not, then `first`, one of each network in turn."""
        first = sorted(donors, key=lambda r: (self._silent[r.peer_id], r.peer_id not in self._first))
        return in_turn(first, self._network_of)[:MAX_ASKED]

    def _network_of(self, donor: PeerRecord) -> str:
        return self._blocks.get(donor.peer_id) or named_block(donor)

    def _enough(self, offers: Offers, known: Sequence[PeerRecord]) -> bool:
        """Whether `NETWORKS` networks made offers. Where all known donors are in one network, each key counts."""
        votes = BlockVotes({donor.peer_id: self._network_of(donor) for donor in known})
        return votes.count(offered.donor.peer_id for offered in offers.offered) >= NETWORKS

    async def _ask_all(
        self, donors: Sequence[PeerRecord], run_round: int, known: Sequence[PeerRecord], *, fresh: bool
    ) -> Offers:
        """Ask all of `donors`. `known`: all that could be asked."""
        offers = Offers()
        async with asyncio.TaskGroup() as asking:
            asked = {
                asking.create_task(self._ask(donor, run_round, offers, fresh=fresh)): donor.peer_id for donor in donors
            }
            waiting = set(asked)
            while waiting and not offers.offered:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if waiting:
                _, waiting = await asyncio.wait(waiting, timeout=PATIENCE_S)
            until = asyncio.get_running_loop().time() + MORE_S
            while (
                waiting and not self._enough(offers, known) and (left := until - asyncio.get_running_loop().time()) > 0
            ):
                _, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
                self._silent[asked[task]] += 1
                offers.why_not[asked[task]] = "has not answered yet"
        return offers

    async def _ask(self, donor: PeerRecord, run_round: int, offers: Offers, *, fresh: bool) -> None:
        try:
            index = await described(self._transport, donor, fresh, self._wanted)
            check_index(index, self._layout, momentum=self._momentum)
        except BadPayload as error:
            self.useless.add(donor.peer_id)
            offers.why_not[donor.peer_id] = str(error)
        except ExchangeError as error:
            offers.why_not[donor.peer_id] = str(error)
            self._silent[donor.peer_id] += 1
            if isinstance(error, PartnerRefused) and error.eta_s > 0:
                offers.busy_for(error.eta_s)
        else:
            self._silent.pop(donor.peer_id, None)
            block = self._block_of(donor)
            if why := _too_old(donor, index.round, run_round):
                offers.why_not[donor.peer_id] = why
            else:
                offers.offered.append(SnapshotOffer(donor, index, block))

    def _block_of(self, donor: PeerRecord) -> str:
        """Return and remember the block in which a donor answered; empty: nobody knows."""
        where = self._transport.answered_at(donor.peer_id)
        if where:
            self._blocks[donor.peer_id] = block_of(where)
        return self._blocks.get(donor.peer_id, "")


async def described(transport: Transport, donor: PeerRecord, fresh: bool = False, wanted: str = "") -> StateIndex:
    """Return the index of a donor's state. It is asked again while it copies that. Raises ExchangeError."""
    for left in reversed(range(ASKED_AGAIN)):
        try:
            return await transport.describe_state(donor, ASK_S, fresh, wanted)
        except PartnerRefused as refusal:
            if refusal.code != Code.NO_STATE or not left:
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


@dataclass(frozen=True, slots=True)
class DonorPlaces:
    """The places of donors in one fetch. No kind takes places of the other.

    `nodes`: the operator's. `fragments`: of the run, so many rounds make one `sync_every`."""

    nodes: Collection[PeerId]
    fragments: int
    momentum: bool

    def left(self, asked: Collection[PeerId], left_s: float) -> bool:
        """Return whether any place is left. `left_s`: as for `fitting`."""
        at_nodes = sum(peer in self.nodes for peer in asked)
        nodes = min(MAX_NODES, len(self.nodes)) if left_s > SLOW_S else 0
        return len(asked) - at_nodes < MAX_DONORS or at_nodes < nodes

    def fitting(self, offered: Sequence[SnapshotOffer], first: SnapshotOffer, left_s: float) -> list[SnapshotOffer]:
        """Return the donors whose pieces may be mixed with those of the first one.

        `left_s`: seconds until all is here. In pairs the nodes come in only where that is long: peers have a newer
        state."""
        if self.momentum:
            return [one for one in offered if one.mark == first.mark]
        return [one for one in offered if self._go_together(one, first, left_s)]

    def _go_together(self, one: SnapshotOffer, first: SnapshotOffer, left_s: float) -> bool:
        if self._is_node(one) == self._is_node(first):
            return len(compatible_offers([one, first], momentum=False)) == 2
        return self._close(first, one) or (left_s > SLOW_S and self._close(one, first))

    def free(self, fitting: Sequence[SnapshotOffer], asked: Collection[PeerId]) -> list[SnapshotOffer]:
        """Return those of the fitting donors that have a place beside the ones asked already, in their order."""
        at_nodes = sum(peer in self.nodes for peer in asked)
        left = {True: MAX_NODES - at_nodes, False: MAX_DONORS - (len(asked) - at_nodes)}
        taken = []
        for one in fitting:
            kind = one.donor.peer_id in self.nodes
            if one.donor.peer_id not in asked and left[kind] > 0:
                left[kind] -= 1
                taken.append(one)
        return taken

    def _close(self, node: SnapshotOffer, peer: SnapshotOffer) -> bool:
        """Return whether a node of the operator has kept a pair's state that goes with the state of this peer."""
        apart = abs(peer.index.round - node.index.round)
        kept = node.donor.peer_id in self.nodes and self._is_node(node)
        kept = kept and node.index.round > FIRST_ROUNDS  # up to there it may be the very first state, untrained
        return kept and apart <= min(OLD_ROUNDS, CLOSE_SYNCS * self.fragments)

    @staticmethod
    def _is_node(one: SnapshotOffer) -> bool:
        return one.donor.status in NODES
