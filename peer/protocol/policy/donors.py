"""The choice of donors: whom a newcomer asks for a state, which of the offered states it takes, and when it gives up.

Every decision about donors is here, with its constants and the reason that a person reads. The module is pure: the
time (`now`, monotonic seconds) and the random generator are arguments. Four users ask it: the joining daemon
(`peer.joining.state`), the simulator, which runs the same fetch, a guest (`peer.result.remote.fetch`), and the
operator's node that keeps states (`peer.node.operator`). They ask donors, move bytes and measure losses.

* `DonorPolicy` has the decisions of one fetch and remembers what its donors did.
* Donors with a complete state are asked: those that train, are paused or have finished, and nodes of the operator.
  Donors of different networks are asked before several of one.
* What one donor says decides nothing: the donors vote, one vote for each address block, and those of proven peers
  count first (`peer.protocol.swarm.block_votes`). Peers that train are preferred to a node with a first or kept state.
  What the operator's node signed outranks the votes.
* A state of a pair run is weighed by its losses before it is used. A newcomer has no params of its own to compare
  with. It knows the loss of a guess among all tokens, which an untrained model has about, and the losses of other
  donors' states. So a state that is a little worse than it should be passes: exchanges with honest partners mend that.

`peer.state.transfer.scheduler` decides which of the chosen donors brings which piece."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from peer.protocol.endpoints import block_of
from peer.protocol.messages import NODES, PeerId, PeerRecord, StateIndex, Status
from peer.protocol.schedule import lower_median
from peer.protocol.swarm.block_votes import BlockVotes, in_turn

# -- whom to ask
COMPLETE = (Status.TRAINING, Status.PAUSED, Status.FINISHED, *NODES)
"""Statuses of a peer that has a complete state."""
MAX_ASKED = 16
"""Donors asked at once."""
WAVES = 3
"""How often further donors are asked where those who offered are of fewer than `NETWORKS` networks."""
NETWORKS = 3
"""Networks whose donors are heard before one of them is believed, where there are as many."""
ASK_S = 10.0
"""Seconds that a donor has to describe its state."""
OFFER_PATIENCE_S = 1.0
"""After the first offer the others have so long to make theirs; later donors are recruited."""
MORE_S = 1.0
"""Further seconds that they have while the offers are of fewer than `NETWORKS` networks."""
AGAIN_S = 0.3
ASKED_AGAIN = 5
"""A donor that is copying its state needs a moment: it is asked so often, this far apart."""

# -- which states
FIRST_ROUNDS = 2
"""Up to this round the very first state is as good as any."""
KEPT_ROUNDS = 50
"""A node's kept state this many rounds behind the training peers is still begun with: as an own checkpoint is."""
ALONE_S = 300.0
"""When nobody was seen to train for so long, the kept state is the newest that there is, however old."""
OLD_ROUNDS = 20
"""Pair runs: pieces of states so many rounds apart are still mixed."""
CLOSE_SYNCS = 3
"""Pair runs: a node's state goes with peers' pieces up to so many `sync_every` behind. A piece of it makes the whole as
old as it is, by that piece's share."""

# -- from how many at once
MAX_DONORS = 6
"""Peers asked for pieces at once. Each has one in flight, so this bounds what a kill of the joiner costs."""
MAX_NODES = 3
"""Nodes of the operator that are asked with them. A home's line is slow, and a node's usually fast."""
SLOW_S = 15.0
"""Pair runs: where peers' pieces take longer than this, the pieces of nodes are taken, too."""
RECRUIT_FIRST_S, RECRUIT_S = 0.5, 5.0
"""How often donors that came, or came back, are looked for while others bring pieces: at first sooner, for those that
had to copy their state, then less and less often."""

# -- how fast a donor has to be
RATE_WEIGHT = 0.5
"""Weight of the last piece in a donor's rate."""
LEAST_RATE = 32_000.0
"""Bytes per second expected of a donor without a measurement."""
SLACK_S, SLOWER = 4.0, 4.0
"""A donor may take so many seconds more, and be so many times slower, than its measured rate says."""

# -- when one is asked again
BACKOFF_S = 10.0
"""A donor that was lost is asked again after this."""
REFUSED_S = 60.0
"""A donor whose state was refused is asked again after this: it may have another one by then."""
BUSY_S = 1.0
"""Seconds after which a busy donor is asked again, at least; five times that at most."""
BUSY_TRIES = 30
"""Busy answers in a row after which a donor is given up."""

# -- waiting and giving up
RETRY_S = 1.0
"""Seconds between two attempts, at least."""
PATIENCE_S = 600.0
"""Seconds without a piece after which a joiner gives up, unless its volunteer says otherwise."""
GUEST_SETTLE_S = 5.0
"""Seconds after a state in which another donor of a guest may finish the copy that it gives."""

# -- weighing
WEIGH_S = 10.0
"""Seconds that the trainer may take to weigh a state."""
LEAST_WINDOWS = 4
"""Fewer windows say nothing about their own error."""
UNTRAINED = 0.5
"""Nats a token that an untrained model may be worse than a guess: its first logits are small, but not equal."""
ERRORS = 3.0
"""Standard errors that a mean may be off by."""
EARLY_ROUNDS = 10
"""After this round a state that is no better than a guess is compared with others."""
MOST_RMS = 100.0
"""Root mean square of a state's values: weights of language models lie orders of magnitude below it."""
SINGLES, MOST_SINGLES = 2, 8
"""Whole states of single donors that have to pass before the best is taken, and that are fetched at most."""

# -- an own checkpoint
RESUME_WITHIN = 50
"""Rounds that an own checkpoint may be behind the training peers."""
SETTLE_S = 3.0
"""With an own checkpoint: how long nobody else may be in the directory before the peer goes on alone."""

# -- means of states, and what the operator's node keeps
MEAN_DONORS = 4
"""Whole states of pairs whose mean is taken: the mean of a few is better than most of them, and more cost the peers'
lines without a gain that shows."""
ENOUGH = 2
"""So many states make a mean that is worth keeping, so a slow home holds nothing up."""
COMPARABLE = 3
"""States of which one may be seen to lie apart. So many are waited for where no state can be evaluated."""
APART = 4.0
"""Times the usual distance between states of pairs that one may be from the middle one. A choice: the distance of an
honest peer follows its work since its last exchange, which differs from peer to peer by a small factor."""
KEEPER_PATIENCE_S = 20.0
"""Seconds without a piece after which the operator's node gives a donor up."""
FETCH_SHARE = 0.1
"""Part of the time that fetching may take, as if states came one after another. Over slow lines states are kept less
often, and peers keep their upload."""
KEEP_AGAIN_S = 60.0
"""A state that was refused, or did not come, is tried again after this, with donors that are drawn anew."""
LAST_S = 120.0
"""Seconds after the end in which peers finish their last round and give its state; longer for a large state."""
LAST_RATE = 2.5e5
"""Bytes a second at which the last state comes at least."""
GONE_S = 10.0
"""When no peer is there for so long after the end, none comes any more."""
WORSE_BY = 0.2
"""Nats a token that a new state may be worse than the kept one. From one state to the next the loss moves by hundredths
once a run is under way; 0.2 is a perplexity 22 % worse, which only a diverged or a spoilt state has."""
COMPARED_ROUNDS = 10
"""Up to this round no kept state is compared: a warming-up learning rate may raise the loss for a while."""


class SignedDigest(Protocol):
    """The operator's statement of what the state of a round was."""

    @property
    def round(self) -> int: ...

    @property
    def digest(self) -> str:
        """In hex. The mark of an offer is its beginning."""


@dataclass(frozen=True, slots=True)
class SnapshotOffer:
    """A snapshot that a donor would give."""

    donor: PeerRecord
    index: StateIndex
    mark: str
    """Names the bytes (`peer.state.snapshot.mark_of`)."""
    block: str = ""
    """The address block in which the donor answered; empty: not known."""


@dataclass(slots=True)
class Offers:
    """What asking came to."""

    offered: list[SnapshotOffer] = field(default_factory=list)
    rejections: dict[PeerId, str] = field(default_factory=dict)
    """Why a donor's state is not taken, for a person."""
    eta_s: float = 0.0
    """The soonest that a busy donor said."""

    def busy_for(self, eta_s: float) -> None:
        """A donor says that it is busy for so long."""
        self.eta_s = min(self.eta_s or eta_s, eta_s)

    def add(self, others: Offers) -> None:
        """Take what further donors said."""
        self.offered += others.offered
        self.rejections |= others.rejections
        if others.eta_s:
            self.busy_for(others.eta_s)

    def bound(self, most: int | None) -> None:
        """Leave out those that name a round beyond `most`; None: any may be."""
        for one in [one for one in self.offered if most is not None and one.index.round > most]:
            self.offered.remove(one)
            self.rejections[one.donor.peer_id] = (
                f"names round {one.index.round}, and the run is in round {most} at most"
            )

    def ensure_first(self, digests: Sequence[SignedDigest]) -> None:
        """Leave out those of round 0 that are not the signed first state. Without a digest of it any may be."""
        signed = [one.digest for one in digests if one.round == 0]
        for one in [one for one in self.offered if signed and one.index.round == 0]:
            if not any(digest.startswith(one.mark) for digest in signed):
                self.offered.remove(one)
                self.rejections[one.donor.peer_id] = "names round 0, and gives another state than the operator signed"

    def problem(self) -> str:
        """One line for a person."""
        some = [f"{peer}: {why}" for peer, why in self.rejections.items()]
        return "; ".join(some[:3]) or "no peer with a complete state is in the directory yet"


@dataclass(frozen=True, slots=True)
class StateChoice:
    """The offers whose pieces are fetched together, in the order in which their donors are taken."""

    offers: list[SnapshotOffer]
    why: str = ""
    """Why these and not the others, for a person; empty: there is no other one."""


class DonorRates:
    """Rates of donors in bytes per second, kept over several attempts."""

    def __init__(self) -> None:
        self._rates: dict[PeerId, float] = {}

    def of(self, peer: PeerId) -> float:
        """Return the donor's rate; 0: nothing was measured yet."""
        return self._rates.get(peer, 0.0)

    def observe(self, peer: PeerId, nbytes: int, seconds: float) -> None:
        rate = max(1.0, nbytes / max(seconds, 1e-6))
        before = self._rates.get(peer)
        self._rates[peer] = rate if before is None else (1 - RATE_WEIGHT) * before + RATE_WEIGHT * rate

    def failed(self, peer: PeerId) -> None:
        """Halve the rate of a donor that missed its deadline."""
        if peer in self._rates:
            self._rates[peer] = max(1.0, self._rates[peer] / 2)

    def deadline_s(self, peer: PeerId, nbytes: int) -> float:
        """Return the seconds that this donor may take for so many bytes."""
        return SLACK_S + SLOWER * nbytes / (self.of(peer) or LEAST_RATE)


class DonorPolicy:
    """The decisions of one fetch, and what it has learned about its donors.

    `momentum`: a group's state, which is one and has momentum; False: a pair's, of which there are as many as peers.
    `fragments`: of the run; so many rounds make one `sync_every`. `nodes`: the operator's. `proven`: the peers that are
    proven to us. `patience_s`: seconds without progress after which the fetch is given up."""

    def __init__(
        self,
        *,
        momentum: bool,
        fragments: int = 1,
        nodes: Collection[PeerId] = frozenset(),
        proven: Collection[PeerId] = frozenset(),
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.momentum = momentum
        self.patience_s = patience_s
        self.rates = DonorRates()
        self._fragments = fragments
        self._nodes = nodes
        self._proven = proven
        self._useless: set[PeerId] = set()
        """Donors whose index is not one of this run."""
        self._outlawed: set[PeerId] = set()
        """Donors that gave wrong bytes."""
        self._silent = Counter[PeerId]()
        """How often each did not answer."""
        self._blocks: dict[PeerId, str] = {}
        """Where each answered last."""
        self._left_until: dict[PeerId, float] = {}
        """Donors that were lost, and until when each is left alone."""
        self._refused_until: dict[PeerId, float] = {}
        """Donors whose whole state failed when it was weighed, and until when none is taken of them."""
        self._give_up_at = math.inf

    # -- whom to ask -------------------------------------------------------------------------------------------------

    def candidates(self, records: Iterable[PeerRecord], rng: random.Random) -> list[PeerRecord]:
        """Return the donors with a complete state, the best first: easy to call, training, fast as far as was
        measured."""
        some = list(records)
        able = [record for record in rng.sample(some, len(some)) if record.status in COMPLETE]
        able.sort(key=lambda r: (-r.reach, r.status in NODES, -self.rates.of(r.peer_id)))
        return able

    def available(self, records: Iterable[PeerRecord], now: float) -> list[PeerRecord]:
        """Return the records without donors that gave wrong bytes, or were lost or refused a moment ago."""
        until = self._left_until | self._refused_until
        return [r for r in records if r.peer_id not in self._outlawed and until.get(r.peer_id, 0.0) <= now]

    def run_round(self, records: Iterable[PeerRecord], most: int | None = None) -> int:
        """Return the round that the run is in, as far as donors are to be believed. `most`: the furthest round that
        anybody can be in; None: nobody knows.

        A donor that names an impossible round, or gave an impossible state, must not make the first state look old."""
        believed = [r for r in records if r.peer_id not in self._refused_until and (most is None or r.round <= most)]
        return live_round(believed) or 0

    def next_wave(self, donors: Sequence[PeerRecord], asked: Collection[PeerId]) -> list[PeerRecord]:
        """Return whom to ask now of the donors not `asked` yet: who answers before who did not, then nodes and proven
        peers, one of each network in turn."""
        left = [one for one in donors if one.peer_id not in asked and one.peer_id not in self._useless]
        left.sort(key=lambda r: (self._silent[r.peer_id], not (r.peer_id in self._proven or r.peer_id in self._nodes)))
        return in_turn(left, self._network_of)[:MAX_ASKED]

    def enough(self, offers: Offers, known: Sequence[PeerRecord]) -> bool:
        """Return whether `NETWORKS` networks made offers. Where all known donors are in one network, each key
        counts."""
        votes = BlockVotes({donor.peer_id: self._network_of(donor) for donor in known})
        return votes.count(offered.donor.peer_id for offered in offers.offered) >= NETWORKS

    def ask_again(self, offers: Offers, wanted: str) -> bool:
        """Return whether the donors are asked for a fresh snapshot: those of a group that differ may only have been
        asked at different times. Not where one still has the state `wanted`."""
        marks = {offered.mark for offered in offers_of_peers(offers.offered)}
        return self.momentum and len(marks) > 1 and wanted not in marks

    def _network_of(self, donor: PeerRecord) -> str:
        """Return the block where a donor answered, else that of the first address which its record names. Anybody may
        write anything there, so this decides only who is asked."""
        return self._blocks.get(donor.peer_id) or (block_of(donor.endpoints[0]) if donor.endpoints else "")

    # -- what donors did ---------------------------------------------------------------------------------------------

    def silent(self, donor: PeerId) -> None:
        """Note that a donor did not answer, or refused."""
        self._silent[donor] += 1

    def mark_invalid(self, donor: PeerId) -> None:
        """Note that a donor described a state that is none of this run. It is not asked again."""
        self._useless.add(donor)

    def offer(
        self, offers: Offers, donor: PeerRecord, index: StateIndex, *, mark: str, address: str, run_round: int
    ) -> None:
        """Take a donor's description of its state, or note why it is too old. `address`: where the donor answered;
        empty: unknown."""
        self._silent.pop(donor.peer_id, None)
        if address:
            self._blocks[donor.peer_id] = block_of(address)
        if why := too_old_reason(donor, index.round, run_round):
            offers.rejections[donor.peer_id] = why
        else:
            offers.offered.append(SnapshotOffer(donor, index, mark, self._blocks.get(donor.peer_id, "")))

    def ban_donors(self, donors: Iterable[PeerId]) -> None:
        """Never ask these again: they gave wrong bytes."""
        self._outlawed.update(donors)

    def lost(self, donors: Iterable[PeerId], now: float, *, all_now: bool = False) -> None:
        """Leave these donors, and no others, alone for `BACKOFF_S` from the time when each was first seen to be lost.
        `all_now`: from now on."""
        before = {} if all_now else self._left_until
        self._left_until = {peer: before.get(peer, now + BACKOFF_S) for peer in donors}

    def refuse(self, donor: PeerId, now: float) -> None:
        """Take no state of this donor for `REFUSED_S`, and no longer believe its round."""
        self._refused_until[donor] = now + REFUSED_S

    # -- which state -------------------------------------------------------------------------------------------------

    def choose(
        self, offered: Sequence[SnapshotOffer], wanted: str = "", digests: Sequence[SignedDigest] = ()
    ) -> StateChoice:
        """Return those whose pieces may be mixed, proven donors and donors of different blocks first.

        In groups these have the state `wanted`, if anybody still has it. Else, where peers name different states, the
        newest that was signed (`digests`, the newest first): one of them may lie, and a member that begins a little
        behind catches up. Else the state that weighs most. In pairs their rounds lie within the `OLD_ROUNDS` rounds
        that weigh most. Of two that weigh the same the later is taken."""
        if not offered:
            return StateChoice([])
        chosen, why = self._of_group(offered, wanted, digests) if self.momentum else self._of_pairs(offered)
        if all(one in chosen for one in offers_of_peers(offered)):
            why = "peers' own states go before those that nodes keep" if len(chosen) < len(offered) else ""
        first = sorted(chosen, key=lambda one: one.donor.peer_id not in self._proven)
        return StateChoice(in_turn(first, lambda one: one.block), why)

    def _of_group(
        self, offered: Sequence[SnapshotOffer], wanted: str, digests: Sequence[SignedDigest]
    ) -> tuple[list[SnapshotOffer], str]:
        peers, by_mark = offers_of_peers(offered), dict[str, list[SnapshotOffer]]()
        for one in offered:
            by_mark.setdefault(one.mark, []).append(one)
        if wanted in by_mark:
            return by_mark[wanted], "the donors differ, and pieces of this state are here"
        marks = sorted({one.mark for one in peers})
        for signed in digests if len(marks) > 1 else ():
            for mark, some in by_mark.items():
                if signed.digest.startswith(mark):
                    return some, "the donors differ, and this is the newest state that the operator signed"
        votes = self._votes(peers)
        mark = max(marks, key=lambda m: (_weight(by_mark[m], peers, votes), max(one.index.round for one in by_mark[m])))
        return by_mark[mark], "the donors differ, and most networks have this state"

    def _of_pairs(self, offered: Sequence[SnapshotOffer]) -> tuple[list[SnapshotOffer], str]:
        peers = offers_of_peers(offered)
        votes = self._votes(peers)

        def near(newest: int) -> list[SnapshotOffer]:
            return [one for one in peers if newest - OLD_ROUNDS <= one.index.round <= newest]

        rounds = {one.index.round for one in peers}
        newest = max(rounds, key=lambda newest: (_weight(near(newest), peers, votes), newest))
        return near(newest), f"most networks have a state of rounds {newest - OLD_ROUNDS} to {newest}"

    def _votes(self, offered: Sequence[SnapshotOffer]) -> BlockVotes:
        return BlockVotes({one.donor.peer_id: one.block for one in offered}, self._proven)

    def left_out(self, offers: Offers, choice: StateChoice) -> dict[PeerId, str]:
        """Return the peers whose offer does not go with the chosen ones, and why, for a person."""
        newest = max((one.index.round for one in choice.offers), default=0)
        others = "most" if self.momentum else f"round {newest} of the others"
        return {
            one.donor.peer_id: f"it is of round {one.index.round}, and does not go with the state of {others}"
            for one in offers_of_peers(offers.offered)
            if one not in choice.offers
        }

    # -- parallel donors ----------------------------------------------------------------------------------------------

    def has_place(self, asked: Collection[PeerId], left_s: float) -> bool:
        """Return whether any place is left beside the donors asked now. No kind of donor takes places of the other.
        `left_s`: as for `fitting`."""
        at_nodes = sum(peer in self._nodes for peer in asked)
        nodes = min(MAX_NODES, len(self._nodes)) if left_s > SLOW_S else 0
        return len(asked) - at_nodes < MAX_DONORS or at_nodes < nodes

    def fitting(self, offered: Sequence[SnapshotOffer], first: SnapshotOffer, left_s: float) -> list[SnapshotOffer]:
        """Return the donors whose pieces may be mixed with those of the first one.

        `left_s`: seconds until all is here. In pairs the nodes come in only where that is long: peers have a newer
        state."""
        if self.momentum:
            return [one for one in offered if one.mark == first.mark]
        return [one for one in offered if self._go_together(one, first, left_s)]

    def _go_together(self, one: SnapshotOffer, first: SnapshotOffer, left_s: float) -> bool:
        if (one.donor.status in NODES) == (first.donor.status in NODES):
            return keeps_piece(one.index.round, first.index.round)
        return self._close(first, one) or (left_s > SLOW_S and self._close(one, first))

    def _close(self, node: SnapshotOffer, peer: SnapshotOffer) -> bool:
        """Return whether a node of the operator has kept a pair's state that goes with the state of this peer."""
        apart = abs(peer.index.round - node.index.round)
        kept = node.donor.peer_id in self._nodes and node.donor.status in NODES
        kept = kept and node.index.round > FIRST_ROUNDS  # up to there it may be the very first state, untrained
        return kept and apart <= min(OLD_ROUNDS, CLOSE_SYNCS * self._fragments)

    def take_places(self, fitting: Sequence[SnapshotOffer], asked: Collection[PeerId] = ()) -> list[SnapshotOffer]:
        """Return those of the fitting donors that have a place beside the ones asked already, in their order."""
        at_nodes = sum(peer in self._nodes for peer in asked)
        left = {True: MAX_NODES - at_nodes, False: MAX_DONORS - (len(asked) - at_nodes)}
        taken = []
        for one in fitting:
            kind = one.donor.peer_id in self._nodes
            if one.donor.peer_id not in asked and left[kind] > 0:
                left[kind] -= 1
                taken.append(one)
        return taken

    # -- waiting and giving up ---------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Begin to count the time without progress."""
        self._give_up_at = now + self.patience_s

    def progressed(self, now: float) -> None:
        """Count anew, as pieces came. Not once a state was refused: liars must not hold a newcomer for ever."""
        if not self._refused_until:
            self.begin(now)

    def gives_up(self, now: float) -> bool:
        """Return whether nothing came for `patience_s` seconds."""
        return now >= self._give_up_at

    def waited_s(self, now: float) -> float:
        """Return the seconds without progress."""
        return max(0.0, self.patience_s - (self._give_up_at - now))

    # -- weighing ----------------------------------------------------------------------------------------------------

    def singles(self, offers: Offers) -> list[SnapshotOffer]:
        """Return the donors whose whole states are compared after a mixed one failed: those that go together first."""
        near = self.choose(offers.offered).offers
        return [*near, *(one for one in offers.offered if one not in near)][:MOST_SINGLES]


# -- which state: without memory -------------------------------------------------------------------------------------


def live_round(records: Iterable[PeerRecord]) -> int | None:
    """Return the round that the run is in: the lower median of those who train or have finished. None: nobody is known
    to."""
    return lower_median(r.round for r in records if r.status in (Status.TRAINING, Status.FINISHED))


def offers_of_peers(offered: Sequence[SnapshotOffer]) -> list[SnapshotOffer]:
    """Return those of peers; those of nodes if there is no other."""
    return [one for one in offered if one.donor.status not in NODES] or list(offered)


def _weight(some: Sequence[SnapshotOffer], peers: Sequence[SnapshotOffer], votes: BlockVotes) -> tuple[int, ...]:
    """Return what these weigh. Nodes with the same state have no vote beside peers."""
    voting = {one.donor.peer_id for one in peers}
    return votes.weigh(one.donor.peer_id for one in some if one.donor.peer_id in voting)


def too_old_reason(donor: PeerRecord, round_: int, run_round: int) -> str:
    """Return why nobody should begin with this state of a node of the operator, for a person; empty: they may."""
    if donor.status not in NODES:
        return ""
    known = max(run_round, donor.round)  # a node remembers what it has seen announced
    if round_ == 0 and known > FIRST_ROUNDS:
        return f"has only the first state, and the run has come to round {known}"
    if round_ > 0 and run_round - round_ > KEPT_ROUNDS:
        return f"has kept the state of round {round_}, and the run has come to round {run_round}"
    return ""


def keeps_piece(round_: int, newest: int) -> bool:
    """Return whether a piece of a pair's state of this round goes with the newest that donors have."""
    return abs(round_ - newest) <= OLD_ROUNDS


# -- when ------------------------------------------------------------------------------------------------------------


def recruit_pauses() -> Iterator[float]:
    """Yield the seconds between two looks for further donors."""
    pause = RECRUIT_FIRST_S
    while True:
        yield pause
        pause = min(2 * pause, RECRUIT_S)


def busy_wait_s(busy: int, eta_s: float) -> float | None:
    """Return when a donor is asked again after so many busy answers in a row, of which the last named `eta_s`, in
    seconds. None: it is given up."""
    return None if busy > BUSY_TRIES else max(BUSY_S, min(eta_s, 5 * BUSY_S))


def retry_wait_s(eta_s: float) -> float:
    """Return the seconds until the next attempt. `eta_s`: the soonest that a busy donor said; 0: none did."""
    return max(RETRY_S, min(eta_s, BACKOFF_S))


def grace_s(took_s: float, least_s: float = 0.0) -> float:
    """Return the seconds that slower donors have once `ENOUGH` states came: as long again as those took."""
    return max(least_s, took_s)


# -- weighing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateLosses:
    """Mean losses in nats a token, one for each window."""

    windows: tuple[float, ...]
    guess: float
    """Of a guess among all tokens: the logarithm of their number."""
    source: str = ""
    """Where the windows are from, for a person."""

    @property
    def mean(self) -> float:
        return math.fsum(self.windows) / len(self.windows)


@dataclass(frozen=True, slots=True)
class WeighedState:
    """What came of weighing one state."""

    losses: StateLosses | None
    """None: there is no loss to judge it by."""
    impossible: str
    """Why no honest donor gives it, for a person; empty: one may."""
    doubted: str
    """Why it is compared with others, for a person; empty: it is good."""

    def better_than(self, other: WeighedState) -> bool:
        """Return whether this state is clearly better."""
        if self.losses is None or other.losses is None:
            return bool(other.impossible) and not self.impossible
        return clearly_better(self.losses, other.losses)


class SingleStates:
    """Comparison of single donors' whole states, until `SINGLES` are possible. `worst`: the state that they have to be
    clearly better than; None: any possible one is."""

    def __init__(self, worst: WeighedState | None) -> None:
        self._best = worst
        self._passed = 0

    def is_best(self, found: WeighedState) -> bool:
        """Take a possible state; return whether it is the best so far."""
        self._passed += 1
        better = self._best is None or found.better_than(self._best)
        if better:
            self._best = found
        return better

    @property
    def decided(self) -> bool:
        return self._passed >= SINGLES


def impossible_reason(losses: StateLosses) -> str:
    """Return why no honest donor gives such a state, for a person; empty: one may."""
    if len(losses.windows) < LEAST_WINDOWS:
        return ""
    if not all(map(math.isfinite, losses.windows)):
        return "its loss is not finite"
    most = losses.guess + max(UNTRAINED, ERRORS * _error(losses.windows))
    if losses.mean <= most:
        return ""
    return f"its loss is {losses.mean:.4g} nats a token on {_told(losses)}, more than an untrained model has"


def doubt_reason(losses: StateLosses, round_: int) -> str:
    """Return why a state of this round is to be compared with others, for a person; empty: it is good."""
    if (why := impossible_reason(losses)) or len(losses.windows) < LEAST_WINDOWS or round_ <= EARLY_ROUNDS:
        return why
    if losses.mean <= losses.guess - ERRORS * _error(losses.windows):
        return ""
    return f"its loss is {losses.mean:.4g} nats a token on {_told(losses)}, no better than a guess, in round {round_}"


def clearly_better(one: StateLosses, other: StateLosses) -> bool:
    """Return whether `one` is better than `other` by more than chance explains. Both are of the same windows."""
    if not all(map(math.isfinite, one.windows)):
        return False
    if not all(map(math.isfinite, other.windows)):
        return True
    gains = [b - a for a, b in zip(one.windows, other.windows, strict=True)]
    return math.fsum(gains) / len(gains) > ERRORS * _error(gains)


def too_large_reason(rms: float) -> str:
    """Return why values of this root mean square are no state, for a person; empty: they may be one."""
    if math.isfinite(rms) and rms <= MOST_RMS:
        return ""
    return f"the root mean square of its values is {rms:.3g}; at most {MOST_RMS:g} is taken"


def _told(losses: StateLosses) -> str:
    return f"{len(losses.windows)} windows {losses.source}".rstrip()


def _error(values: Sequence[float]) -> float:
    """Return the standard error of the mean."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


# -- an own checkpoint -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointVerdict:
    """Whether a peer goes on from its own checkpoint."""

    resumes: bool
    why: str
    """For a person."""


def judge_checkpoint(name: str, round_: int, live: int | None, most: int | None = None) -> CheckpointVerdict:
    """Return whether an own checkpoint of this round is gone on from, where others give a state.

    `live`: the round of those who train; None: nobody is known to. `most`: the furthest round that anybody can be in;
    None: nobody knows. A checkpoint of a far later one was made by another start of the run."""
    if most is not None and round_ > most + RESUME_WITHIN:
        return CheckpointVerdict(False, f"own {name} is of round {round_}, and the run is in round {most} at most")
    behind = 0 if live is None else live - round_
    if behind > RESUME_WITHIN:
        why = f"own {name} of round {round_} is {behind} rounds behind, more than {RESUME_WITHIN}"
        return CheckpointVerdict(False, why)
    return CheckpointVerdict(True, "nobody else is known to train" if live is None else f"the run is in round {live}")


# -- the operator's node ---------------------------------------------------------------------------------------------


def with_own_state(records: Iterable[PeerRecord]) -> list[PeerRecord]:
    """Return the peers that have a complete state of their own."""
    return [record for record in records if record.status in COMPLETE and record.status not in NODES]


def donors_of_last(records: Sequence[PeerRecord]) -> list[PeerRecord]:
    """Return those to fetch the last state from, once most of those who train have finished; else nobody."""
    finished = [record for record in records if record.status is Status.FINISHED]
    training = [record for record in records if record.status is Status.TRAINING]
    if not training:
        return finished or list(records)
    return finished if len(finished) > len(training) else []


def donors_of_mean(
    donors: Sequence[PeerRecord], rng: random.Random, trusted: Collection[PeerId] = frozenset()
) -> list[PeerRecord]:
    """Return the donors to ask for whole states of pairs, in turn: twice as many as are wanted, as some give none.
    `trusted`: those to ask first."""
    drawn = rng.sample(list(donors), len(donors))
    return sorted(drawn, key=lambda donor: donor.peer_id not in trusted)[: 2 * MEAN_DONORS]


def states_apart(distances: Sequence[Sequence[float]], trusted: Collection[int] = frozenset()) -> dict[int, str]:
    """Return the states of pairs that lie apart from the others, by their number, and why, for a person.

    `distances`: Euclidean, of every state from every other. `trusted`: states of which one is the middle, where there
    are any; two or more also decide what distance is usual. Among fewer than `COMPARABLE` states none lies apart."""
    if len(distances) < COMPARABLE:
        return {}

    voters = list(trusted) if len(trusted) > 1 else range(len(distances))

    def usual(number: int) -> float:
        others = sorted(distances[number][other] for other in voters if other != number)
        return others[(len(others) - 1) // 2]

    middle = min(trusted or range(len(distances)), key=usual)
    return {
        number: f"it lies {away:.3g} away from the middle state, and others usually {usual(middle):.3g}"
        for number, away in enumerate(distances[middle])
        if away > APART * usual(middle)
    }


def donors_of_reset(records: Iterable[PeerRecord]) -> list[PeerRecord]:
    """Return the nodes that may serve the state that the operator names for a restart of the run."""
    return [record for record in records if record.status is Status.SERVING]


def mean_exclusion_reason(round_: int, run_round: int) -> str:
    """Return why a pair's state goes into no mean, for a person; empty: it does."""
    return "" if keeps_piece(round_, run_round) else f"its round {round_} is far from the run's"


def first_is_outdated(run_round: int) -> bool:
    """Return whether the first state serves no longer in this round."""
    return run_round > FIRST_ROUNDS


def first_state_refusal(run_round: int) -> str:
    """Return why nobody should begin with the first state, for a person; empty: they may."""
    if not first_is_outdated(run_round):
        return ""
    return f"this node has only the first state, and the run has come to round {run_round}: wait for a peer that trains"


def kept_state_refusal(kept: int, run_round: int, alone_s: float) -> str:
    """Return why nobody should begin with the kept state of round `kept`, for a person; empty: they may. `alone_s`: how
    long nobody was seen to train."""
    if run_round - kept <= KEPT_ROUNDS or alone_s > ALONE_S:
        return ""
    return f"this node has kept round {kept}, and the run has come to round {run_round}: wait for a peer"


def discard_reason(loss: float, kept: float | None, kept_round: int) -> str:
    """Return why a state of this loss is not kept, for a person; empty: it is.

    `kept` is the loss of the state kept so far, None if that is not known, and `kept_round` its round."""
    if not math.isfinite(loss):
        return f"its loss is {loss}"
    if kept is None or kept_round <= COMPARED_ROUNDS or loss <= kept + WORSE_BY:
        return ""
    worse = f"{loss - kept:.4f} worse than that of the kept state; at most {WORSE_BY} is taken"
    return f"its loss is {loss:.4f} nats a token, {worse}"


def keep_again_s(*, good: bool, every_s: float, took_s: float) -> float:
    """Return the seconds from the beginning of a fetch to the next one. `took_s`: of all its states, as if they had
    come one after another."""
    return max(every_s if good else min(KEEP_AGAIN_S, every_s), took_s / FETCH_SHARE)


def last_wait_s(parameters: int) -> float:
    """Return the seconds after the end in which the last state of a model of this size is waited for."""
    return LAST_S + 4 * parameters / LAST_RATE
