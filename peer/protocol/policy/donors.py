"""The choice of donors: which peers a joiner asks for a state, which of the offered states it uses, and when it gives
up.

All decisions about donors are here, with their constants and the reasons that people read. The module is pure: the time
(`now`, monotonic seconds) and the random generator are arguments. It has four users: the joining daemon
(`peer.joining.state`), the simulator (which runs the same fetch), guests (`peer.result.remote.fetch`), and the
operator's node that keeps states (`peer.node.operator`). They send the requests, transfer the bytes and measure losses.

* `DonorPolicy` makes the decisions of one fetch, and remembers what its donors did.
* Donors with a complete state are asked: peers that train, are paused or have finished, and nodes of the operator. At
  first one donor of each network is asked, then a second one of each.
* No single donor decides. The donors vote on the state, one vote for each address block, and votes of proven peers
  count first (`peer.protocol.swarm.block_votes`). States of training peers are preferred to the first state of the run
  and to the state that a node keeps. A digest that the operator's node signed outranks the votes.
* A state of a pair run is weighed by its losses before it is used. A joiner has no params of its own to compare with.
  It knows the loss of a uniform guess, which an untrained model roughly has, and the losses of other donors' states. So
  a slightly bad state passes; exchanges with honest partners repair that.

`peer.state.transfer.scheduler` decides which of the chosen donors sends which piece."""

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

# -- requests to donors
COMPLETE = (Status.TRAINING, Status.PAUSED, Status.FINISHED, *NODES)
"""Statuses of peers that have a complete state."""
MAX_ASKED = 16
"""Donors asked at the same time."""
WAVES = 3
"""Maximum rounds of requests while the offers come from fewer than `NETWORKS` networks."""
NETWORKS = 3
"""Number of networks from which offers are needed before one is chosen. If fewer are known, offers from all of them
suffice."""
ASK_S = 10.0
"""Timeout in seconds for a donor's description of its state."""
OFFER_PATIENCE_S = 1.0
"""Seconds to wait for further offers after the first one. Later donors are added during the transfer."""
MORE_S = 1.0
"""Further seconds to wait while the offers come from fewer than `NETWORKS` networks."""
AGAIN_S = 0.3
ASKED_AGAIN = 5
"""How often a donor is asked again while it copies its state, at intervals of `AGAIN_S` seconds."""

# -- choice of states
FIRST_ROUNDS = 2
"""Up to this round, the first state of the run is as good as any."""
KEPT_ROUNDS = 50
"""A node's kept state is used if it is at most this many rounds behind the training peers (the same limit as for an own
checkpoint)."""
ALONE_S = 300.0
"""If no training peer was seen for this many seconds, the kept state is the newest one, however old it is."""
OLD_ROUNDS = 20
"""Pair runs: pieces of states at most this many rounds apart may be mixed."""
CLOSE_SYNCS = 3
"""Pair runs: pieces of a node's state may be mixed with peers' pieces if it is at most this many `sync_every` behind.
Each such piece makes the result older by its share."""

# -- parallel transfers
MAX_DONORS = 6
"""Peers that send pieces at the same time. Each has one piece in flight, which bounds the bytes that are lost when the
joiner is killed."""
MAX_NODES = 3
"""Nodes of the operator that send pieces in addition. Their lines are usually faster than those of homes."""
SLOW_S = 15.0
"""Pair runs: pieces of nodes are used too if the transfer from peers would take longer than this many seconds."""
RECRUIT_FIRST_S, RECRUIT_S = 0.5, 5.0
"""Seconds between searches for new donors during a transfer: at first short, for donors that had to copy their state,
then doubling up to `RECRUIT_S`."""

# -- rates and deadlines
RATE_WEIGHT = 0.5
"""Weight of the latest piece in a donor's average rate."""
LEAST_RATE = 32_000.0
"""Assumed bytes per second of a donor without a measurement."""
SLACK_S, SLOWER = 4.0, 4.0
"""Deadline of a piece: this many seconds, plus `SLOWER` times the duration at the donor's measured rate."""

# -- retries
BACKOFF_S = 10.0
"""Seconds after which a lost donor is asked again."""
REFUSED_S = 60.0
"""Seconds after which a donor whose state was refused is asked again. It may have another state by then."""
BUSY_S = 1.0
"""Minimum seconds before a busy donor is asked again. The maximum is five times that."""
BUSY_TRIES = 30
"""Consecutive busy answers after which a donor is given up."""

# -- waiting and giving up
RETRY_S = 1.0
"""Minimum seconds between two attempts."""
PATIENCE_S = 600.0
"""Seconds without a piece after which a joiner gives up, unless the volunteer sets another limit."""
GUEST_SETTLE_S = 5.0
"""A guest that has its state waits this many seconds for other donors to finish copies that it requested."""

# -- weighing
WEIGH_S = 10.0
"""Time limit of the trainer for weighing a state, in seconds."""
LEAST_WINDOWS = 4
"""Minimum number of windows. Fewer allow no estimate of their standard error."""
UNTRAINED = 0.5
"""Nats per token by which an untrained model may be worse than a uniform guess: its first logits are small, but not
equal."""
ERRORS = 3.0
"""Standard errors by which a mean loss may differ by chance."""
EARLY_ROUNDS = 10
"""After this round, a state that is no better than a uniform guess is compared with others."""
MOST_RMS = 100.0
"""Maximum root mean square of a state's values. Weights of language models are smaller by orders of magnitude."""
SINGLES, MOST_SINGLES = 2, 8
"""Whole states of single donors that have to pass before the best is used, and the maximum that are fetched."""

# -- an own checkpoint
RESUME_WITHIN = 50
"""Rounds that an own checkpoint may be behind the training peers."""
SETTLE_S = 3.0
"""With an own checkpoint: seconds without another peer in the directory after which the peer continues alone."""

# -- means of states, and what the operator's node keeps
MEAN_DONORS = 4
"""Whole states of pairs in a mean. The mean of a few is better than most single states; more would use the peers' lines
without a visible gain."""
ENOUGH = 2
"""Number of states that are enough for a mean, so that one slow home does not block it."""
COMPARABLE = 3
"""Minimum number of states to detect one that differs from the others. Where losses cannot be evaluated, this many
states are waited for."""
APART = 4.0
"""A state of a pair differs too much if its distance from the middle state exceeds this times the usual distance. The
value is a choice: the distance of an honest peer depends on its work since its last exchange, which differs by a small
factor between peers."""
KEEPER_PATIENCE_S = 20.0
"""Seconds without a piece after which the operator's node gives up a donor."""
FETCH_SHARE = 0.1
"""Maximum fraction of the time spent fetching, if states came one after another. Over slow lines states are kept less
often, so that peers keep their upload."""
KEEP_AGAIN_S = 60.0
"""Seconds until the next attempt after a state was refused or did not arrive. Donors are then drawn again."""
LAST_S = 120.0
"""Minimum seconds after the end of the run in which the node waits for the last state."""
LAST_RATE = 2.5e5
"""Assumed bytes per second for the transfer of the last state."""
GONE_S = 10.0
"""Seconds without any peer after the end of the run, after which the node stops waiting for the last state."""
WORSE_BY = 0.2
"""Nats per token by which a new state may be worse than the kept one. Between consecutive states the loss changes by
hundredths; 0.2 is a perplexity 22 % worse, as of a diverged or damaged state."""
COMPARED_ROUNDS = 10
"""Up to this round states are not compared: the loss may rise for a while during the warm-up of the learning rate."""


class SignedDigest(Protocol):
    """The operator's statement of the digest of the state in a round."""

    @property
    def round(self) -> int: ...

    @property
    def digest(self) -> str:
        """In hex. `SnapshotOffer.mark` is a prefix of it."""


@dataclass(frozen=True, slots=True)
class SnapshotOffer:
    """A snapshot that a donor offers."""

    donor: PeerRecord
    index: StateIndex
    mark: str
    """Identifies the bytes of the snapshot (`peer.state.snapshot.mark_of`)."""
    block: str = ""
    """Address block at which the donor answered; empty: not known."""


@dataclass(slots=True)
class Offers:
    """The results of asking donors."""

    offered: list[SnapshotOffer] = field(default_factory=list)
    rejections: dict[PeerId, str] = field(default_factory=dict)
    """Why a donor's state is not used, for people to read."""
    eta_s: float = 0.0
    """The shortest waiting time that a busy donor named, in seconds; 0: none did."""

    def busy_for(self, eta_s: float) -> None:
        """Record that a donor is busy for this many seconds."""
        self.eta_s = min(self.eta_s or eta_s, eta_s)

    def add(self, others: Offers) -> None:
        """Add the results of further donors."""
        self.offered += others.offered
        self.rejections |= others.rejections
        if others.eta_s:
            self.busy_for(others.eta_s)

    def bound(self, most: int | None) -> None:
        """Reject offers of a later round than `most`. None: no limit."""
        for one in [one for one in self.offered if most is not None and one.index.round > most]:
            self.offered.remove(one)
            self.rejections[one.donor.peer_id] = (
                f"names round {one.index.round}, and the run is in round {most} at most"
            )

    def ensure_first(self, digests: Sequence[SignedDigest]) -> None:
        """Reject offers of round 0 that are not the signed first state. Without a signed digest of it, all are
        accepted."""
        signed = [one.digest for one in digests if one.round == 0]
        for one in [one for one in self.offered if signed and one.index.round == 0]:
            if not any(digest.startswith(one.mark) for digest in signed):
                self.offered.remove(one)
                self.rejections[one.donor.peer_id] = "names round 0, and gives another state than the operator signed"

    def problem(self) -> str:
        """Return the reasons in one line, for people to read."""
        some = [f"{peer}: {why}" for peer, why in self.rejections.items()]
        return "; ".join(some[:3]) or "no peer with a complete state is in the directory yet"


@dataclass(frozen=True, slots=True)
class StateChoice:
    """The offers whose pieces are fetched together, in the order in which their donors are used."""

    offers: list[SnapshotOffer]
    why: str = ""
    """Why these were chosen and not the others, for people to read; empty: there are no others."""


class DonorRates:
    """Measured rates of donors in bytes per second, over several attempts."""

    def __init__(self) -> None:
        self._rates: dict[PeerId, float] = {}

    def of(self, peer: PeerId) -> float:
        """Return the donor's rate; 0: not measured."""
        return self._rates.get(peer, 0.0)

    def observe(self, peer: PeerId, nbytes: int, seconds: float) -> None:
        """Record that a donor sent `nbytes` in `seconds`."""
        rate = max(1.0, nbytes / max(seconds, 1e-6))
        before = self._rates.get(peer)
        self._rates[peer] = rate if before is None else (1 - RATE_WEIGHT) * before + RATE_WEIGHT * rate

    def failed(self, peer: PeerId) -> None:
        """Halve the rate of a donor that missed its deadline."""
        if peer in self._rates:
            self._rates[peer] = max(1.0, self._rates[peer] / 2)

    def deadline_s(self, peer: PeerId, nbytes: int) -> float:
        """Return the seconds that this donor may take for `nbytes`."""
        return SLACK_S + SLOWER * nbytes / (self.of(peer) or LEAST_RATE)


class DonorPolicy:
    """The decisions of one fetch, and what it has learned about its donors.

    `momentum`: True for a group, which has one state with momentum; False for pairs, where each peer has its own state.
    `fragments`: number of fragments of the run; that many rounds make one `sync_every`. `nodes`: the operator's nodes.
    `proven`: peers that are proven to us. `patience_s`: seconds without progress after which the fetch is given up."""

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
        self._invalid: set[PeerId] = set()
        """Donors whose description does not fit this run."""
        self._banned: set[PeerId] = set()
        """Donors that sent wrong bytes."""
        self._unanswered = Counter[PeerId]()
        """How often each donor did not answer."""
        self._blocks: dict[PeerId, str] = {}
        """Address block at which each donor answered last."""
        self._lost_until: dict[PeerId, float] = {}
        """Lost donors, and until when each is not asked."""
        self._refused_until: dict[PeerId, float] = {}
        """Donors whose whole state was refused by weighing, and until when no state of theirs is used."""
        self._give_up_at = math.inf

    # -- requests to donors ------------------------------------------------------------------------------------------

    def candidates(self, records: Iterable[PeerRecord], rng: random.Random) -> list[PeerRecord]:
        """Return the donors with a complete state, best first: easy to call, then training, then by measured rate."""
        some = list(records)
        able = [record for record in rng.sample(some, len(some)) if record.status in COMPLETE]
        able.sort(key=lambda r: (-r.reach, r.status in NODES, -self.rates.of(r.peer_id)))
        return able

    def available(self, records: Iterable[PeerRecord], now: float) -> list[PeerRecord]:
        """Return the records without donors that sent wrong bytes, or were lost or refused a moment ago."""
        until = self._lost_until | self._refused_until
        return [r for r in records if r.peer_id not in self._banned and until.get(r.peer_id, 0.0) <= now]

    def run_round(self, records: Iterable[PeerRecord], most: int | None = None) -> int:
        """Return the round of the run according to credible donors. `most`: the furthest possible round; None: not
        known.

        Donors that name an impossible round or sent an impossible state are ignored, so that they cannot make the first
        state look outdated."""
        believed = [r for r in records if r.peer_id not in self._refused_until and (most is None or r.round <= most)]
        return live_round(believed) or 0

    def next_wave(self, donors: Sequence[PeerRecord], asked: Collection[PeerId]) -> list[PeerRecord]:
        """Return which of the donors that are not in `asked` to ask now: those that answered before, then nodes and
        proven peers, alternating between networks."""
        left = [one for one in donors if one.peer_id not in asked and one.peer_id not in self._invalid]
        left.sort(
            key=lambda r: (self._unanswered[r.peer_id], not (r.peer_id in self._proven or r.peer_id in self._nodes))
        )
        return in_turn(left, self._network_of)[:MAX_ASKED]

    def enough(self, offers: Offers, known: Sequence[PeerRecord]) -> bool:
        """Return whether the offers come from `NETWORKS` networks. If all known donors are in one network, each key
        counts as one."""
        votes = BlockVotes({donor.peer_id: self._network_of(donor) for donor in known})
        return votes.count(offered.donor.peer_id for offered in offers.offered) >= NETWORKS

    def ask_again(self, offers: Offers, wanted: str) -> bool:
        """Return whether to ask the donors of a group for fresh snapshots, because their offers differ. The only reason
        may be that the snapshots were made at different times. False if a donor still offers the state `wanted`."""
        marks = {offered.mark for offered in offers_of_peers(offers.offered)}
        return self.momentum and len(marks) > 1 and wanted not in marks

    def _network_of(self, donor: PeerRecord) -> str:
        """Return the block at which a donor answered, else that of the first address in its record. A record may
        contain any address, so this only decides which donors are asked first."""
        return self._blocks.get(donor.peer_id) or (block_of(donor.endpoints[0]) if donor.endpoints else "")

    # -- results of requests -----------------------------------------------------------------------------------------

    def mark_silent(self, donor: PeerId) -> None:
        """Record that a donor did not answer, or refused."""
        self._unanswered[donor] += 1

    def mark_invalid(self, donor: PeerId) -> None:
        """Record that a donor described a state that does not fit this run. It is not asked again."""
        self._invalid.add(donor)

    def offer(
        self, offers: Offers, donor: PeerRecord, index: StateIndex, *, mark: str, address: str, run_round: int
    ) -> None:
        """Add a donor's description of its state to the offers, or to the rejections if it is too old. `address`: where
        the donor answered; empty: not known."""
        self._unanswered.pop(donor.peer_id, None)
        if address:
            self._blocks[donor.peer_id] = block_of(address)
        if why := too_old_reason(donor, index.round, run_round):
            offers.rejections[donor.peer_id] = why
        else:
            offers.offered.append(SnapshotOffer(donor, index, mark, self._blocks.get(donor.peer_id, "")))

    def ban_donors(self, donors: Iterable[PeerId]) -> None:
        """Never ask these donors again: they sent wrong bytes."""
        self._banned.update(donors)

    def lost(self, donors: Iterable[PeerId], now: float, *, all_now: bool = False) -> None:
        """Set which donors are lost, in place of the previous set. Each is not asked for `BACKOFF_S` from when it was
        first lost, or from now with `all_now`."""
        before = {} if all_now else self._lost_until
        self._lost_until = {peer: before.get(peer, now + BACKOFF_S) for peer in donors}

    def refuse(self, donor: PeerId, now: float) -> None:
        """Use no state of this donor for `REFUSED_S`, and ignore the round it names."""
        self._refused_until[donor] = now + REFUSED_S

    # -- choice of a state -------------------------------------------------------------------------------------------

    def choose(
        self, offered: Sequence[SnapshotOffer], wanted: str = "", digests: Sequence[SignedDigest] = ()
    ) -> StateChoice:
        """Return the offers whose pieces may be mixed, with proven donors first and donors of different blocks
        alternating.

        In groups all have one state: `wanted`, if a donor still has it; else, if peers offer different states, the
        newest one in `digests` (newest first), because a member that starts a little behind can catch up; else the
        state with most votes. In pairs, the states are of the `OLD_ROUNDS` rounds with most votes. Ties go to the later
        round."""
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
        """Return the peers whose offers were not chosen, with the reason, for people to read."""
        newest = max((one.index.round for one in choice.offers), default=0)
        others = "most" if self.momentum else f"round {newest} of the others"
        return {
            one.donor.peer_id: f"it is of round {one.index.round}, and does not go with the state of {others}"
            for one in offers_of_peers(offers.offered)
            if one not in choice.offers
        }

    # -- parallel donors ----------------------------------------------------------------------------------------------

    def has_place(self, asked: Collection[PeerId], left_s: float) -> bool:
        """Return whether another donor may be added to those that send pieces now. Peers and nodes have separate
        places. `left_s`: see `fitting`."""
        at_nodes = sum(peer in self._nodes for peer in asked)
        nodes = min(MAX_NODES, len(self._nodes)) if left_s > SLOW_S else 0
        return len(asked) - at_nodes < MAX_DONORS or at_nodes < nodes

    def fitting(self, offered: Sequence[SnapshotOffer], first: SnapshotOffer, left_s: float) -> list[SnapshotOffer]:
        """Return the offers whose pieces may be mixed with those of the first one.

        `left_s`: estimated seconds until the transfer is complete. In pairs nodes are used only if that is long,
        because peers have a newer state."""
        if self.momentum:
            return [one for one in offered if one.mark == first.mark]
        return [one for one in offered if self._go_together(one, first, left_s)]

    def _go_together(self, one: SnapshotOffer, first: SnapshotOffer, left_s: float) -> bool:
        if (one.donor.status in NODES) == (first.donor.status in NODES):
            return keeps_piece(one.index.round, first.index.round)
        return self._close(first, one) or (left_s > SLOW_S and self._close(one, first))

    def _close(self, node: SnapshotOffer, peer: SnapshotOffer) -> bool:
        """Return whether a node of the operator has a kept state of a pair run that may be mixed with this peer's
        state."""
        apart = abs(peer.index.round - node.index.round)
        kept = node.donor.peer_id in self._nodes and node.donor.status in NODES
        kept = kept and node.index.round > FIRST_ROUNDS  # up to there it may be the very first state, untrained
        return kept and apart <= min(OLD_ROUNDS, CLOSE_SYNCS * self._fragments)

    def take_places(self, fitting: Sequence[SnapshotOffer], asked: Collection[PeerId] = ()) -> list[SnapshotOffer]:
        """Return the fitting offers that get a place beside the donors in `asked`, in their order."""
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
        """Start to measure the time without progress."""
        self._give_up_at = now + self.patience_s

    def progressed(self, now: float) -> None:
        """Restart the time without progress, because pieces arrived. No effect once a state was refused, so that liars
        cannot delay a joiner without limit."""
        if not self._refused_until:
            self.begin(now)

    def gives_up(self, now: float) -> bool:
        """Return whether `patience_s` seconds have passed without progress."""
        return now >= self._give_up_at

    def waited_s(self, now: float) -> float:
        """Return the seconds without progress."""
        return max(0.0, self.patience_s - (self._give_up_at - now))

    # -- weighing ----------------------------------------------------------------------------------------------------

    def singles(self, offers: Offers) -> list[SnapshotOffer]:
        """Return the offers whose whole states are compared after a mixed state failed, beginning with those that
        `choose` returns."""
        near = self.choose(offers.offered).offers
        return [*near, *(one for one in offers.offered if one not in near)][:MOST_SINGLES]


# -- choice of a state, without memory -------------------------------------------------------------------------------


def live_round(records: Iterable[PeerRecord]) -> int | None:
    """Return the round of the run: the lower median over peers that train or have finished. None: no such peer is
    known."""
    return lower_median(r.round for r in records if r.status in (Status.TRAINING, Status.FINISHED))


def offers_of_peers(offered: Sequence[SnapshotOffer]) -> list[SnapshotOffer]:
    """Return the offers of peers, or all if there are only offers of nodes."""
    return [one for one in offered if one.donor.status not in NODES] or list(offered)


def _weight(some: Sequence[SnapshotOffer], peers: Sequence[SnapshotOffer], votes: BlockVotes) -> tuple[int, ...]:
    """Return the votes for these offers. Nodes with the same state have no vote if there are offers of peers."""
    voting = {one.donor.peer_id for one in peers}
    return votes.weigh(one.donor.peer_id for one in some if one.donor.peer_id in voting)


def too_old_reason(donor: PeerRecord, round_: int, run_round: int) -> str:
    """Return why this state of a node must not be used to join, for people to read; empty: it may."""
    if donor.status not in NODES:
        return ""
    known = max(run_round, donor.round)  # a node's record names the latest round that it has seen
    if round_ == 0 and known > FIRST_ROUNDS:
        return f"has only the first state, and the run has come to round {known}"
    if round_ > 0 and run_round - round_ > KEPT_ROUNDS:
        return f"has kept the state of round {round_}, and the run has come to round {run_round}"
    return ""


def keeps_piece(round_: int, newest: int) -> bool:
    """Return whether a piece of a pair's state of this round may be mixed with the newest offered state."""
    return abs(round_ - newest) <= OLD_ROUNDS


# -- waiting times ---------------------------------------------------------------------------------------------------


def recruit_pauses() -> Iterator[float]:
    """Yield the seconds between searches for further donors."""
    pause = RECRUIT_FIRST_S
    while True:
        yield pause
        pause = min(2 * pause, RECRUIT_S)


def busy_wait_s(busy: int, eta_s: float) -> float | None:
    """Return the seconds until a donor is asked again after `busy` consecutive busy answers, the last of which named
    `eta_s` seconds. None: the donor is given up."""
    return None if busy > BUSY_TRIES else max(BUSY_S, min(eta_s, 5 * BUSY_S))


def retry_wait_s(eta_s: float) -> float:
    """Return the seconds until the next attempt. `eta_s`: the shortest time that a busy donor named; 0: none did."""
    return max(RETRY_S, min(eta_s, BACKOFF_S))


def grace_s(took_s: float, least_s: float = 0.0) -> float:
    """Return how many more seconds slower donors get after `ENOUGH` states arrived: `took_s`, the time in which those
    arrived, but at least `least_s`."""
    return max(least_s, took_s)


# -- weighing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateLosses:
    """Mean losses in nats per token, one for each window."""

    windows: tuple[float, ...]
    guess: float
    """Loss of a uniform guess: the logarithm of the number of different tokens."""
    source: str = ""
    """Where the windows come from, for people to read."""

    @property
    def mean(self) -> float:
        return math.fsum(self.windows) / len(self.windows)


@dataclass(frozen=True, slots=True)
class WeighedState:
    """The result of weighing one state."""

    losses: StateLosses | None
    """None: no loss could be measured."""
    impossible: str
    """Why no honest donor has such a state, for people to read; empty: one may."""
    doubted: str
    """Why the state has to be compared with others, for people to read; empty: it is good."""

    def better_than(self, other: WeighedState) -> bool:
        """Return whether this state is better by more than chance explains."""
        if self.losses is None or other.losses is None:
            return bool(other.impossible) and not self.impossible
        return clearly_better(self.losses, other.losses)


class SingleStates:
    """Compares whole states of single donors, until `SINGLES` of them are possible. `worst`: a state that they have to
    be clearly better than; None: there is none."""

    def __init__(self, worst: WeighedState | None) -> None:
        self._best = worst
        self._passed = 0

    def is_best(self, found: WeighedState) -> bool:
        """Add a possible state; return whether it is the best so far."""
        self._passed += 1
        better = self._best is None or found.better_than(self._best)
        if better:
            self._best = found
        return better

    @property
    def decided(self) -> bool:
        return self._passed >= SINGLES


def impossible_reason(losses: StateLosses) -> str:
    """Return why no honest donor has a state with these losses, for people to read; empty: one may."""
    if len(losses.windows) < LEAST_WINDOWS:
        return ""
    if not all(map(math.isfinite, losses.windows)):
        return "its loss is not finite"
    most = losses.guess + max(UNTRAINED, ERRORS * _error(losses.windows))
    if losses.mean <= most:
        return ""
    return f"its loss is {losses.mean:.4g} nats a token on {_told(losses)}, more than an untrained model has"


def doubt_reason(losses: StateLosses, round_: int) -> str:
    """Return why a state of this round has to be compared with others, for people to read; empty: it is good."""
    if (why := impossible_reason(losses)) or len(losses.windows) < LEAST_WINDOWS or round_ <= EARLY_ROUNDS:
        return why
    if losses.mean <= losses.guess - ERRORS * _error(losses.windows):
        return ""
    return f"its loss is {losses.mean:.4g} nats a token on {_told(losses)}, no better than a guess, in round {round_}"


def clearly_better(one: StateLosses, other: StateLosses) -> bool:
    """Return whether `one` is better than `other` by more than chance explains. Both must be for the same windows."""
    if not all(map(math.isfinite, one.windows)):
        return False
    if not all(map(math.isfinite, other.windows)):
        return True
    gains = [b - a for a, b in zip(one.windows, other.windows, strict=True)]
    return math.fsum(gains) / len(gains) > ERRORS * _error(gains)


def too_large_reason(rms: float) -> str:
    """Return why values with this root mean square cannot be a state, for people to read; empty: they can."""
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
    """Whether a peer continues from its own checkpoint."""

    resumes: bool
    why: str
    """The reason, for people to read."""


def judge_checkpoint(name: str, round_: int, live: int | None, most: int | None = None) -> CheckpointVerdict:
    """Return whether to continue from an own checkpoint of this round, when other peers can give a state.

    `live`: round of the training peers; None: none is known. `most`: the furthest possible round; None: not known. A
    checkpoint of a far later round belongs to another start of the run."""
    if most is not None and round_ > most + RESUME_WITHIN:
        return CheckpointVerdict(False, f"own {name} is of round {round_}, and the run is in round {most} at most")
    behind = 0 if live is None else live - round_
    if behind > RESUME_WITHIN:
        why = f"own {name} of round {round_} is {behind} rounds behind, more than {RESUME_WITHIN}"
        return CheckpointVerdict(False, why)
    return CheckpointVerdict(True, "nobody else is known to train" if live is None else f"the run is in round {live}")


# -- the operator's node ---------------------------------------------------------------------------------------------


def with_own_state(records: Iterable[PeerRecord]) -> list[PeerRecord]:
    """Return the peers with a complete state. Nodes of the operator are left out, because they only keep states of
    others."""
    return [record for record in records if record.status in COMPLETE and record.status not in NODES]


def donors_of_last(records: Sequence[PeerRecord]) -> list[PeerRecord]:
    """Return the peers from which to fetch the last state: those that have finished. Empty unless they outnumber the
    peers that still train. If no peer trains or has finished, return all."""
    finished = [record for record in records if record.status is Status.FINISHED]
    training = [record for record in records if record.status is Status.TRAINING]
    if not training:
        return finished or list(records)
    return finished if len(finished) > len(training) else []


def donors_of_mean(
    donors: Sequence[PeerRecord], rng: random.Random, trusted: Collection[PeerId] = frozenset()
) -> list[PeerRecord]:
    """Return the donors to ask for whole states of pairs, in order. There are twice as many as needed, because some
    will not answer. `trusted`: asked first."""
    drawn = rng.sample(list(donors), len(donors))
    return sorted(drawn, key=lambda donor: donor.peer_id not in trusted)[: 2 * MEAN_DONORS]


def states_apart(distances: Sequence[Sequence[float]], trusted: Collection[int] = frozenset()) -> dict[int, str]:
    """Return the states of pairs that lie too far from the others, by index, with the reason for people to read.

    `distances`: Euclidean distances between all states. `trusted`: indices of trusted states. If there are any, the
    middle state is one of them; if there are two or more, they alone define the usual distance. With fewer than
    `COMPARABLE` states, none is returned."""
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
    """Return why a pair's state is not used in a mean, for people to read; empty: it is."""
    return "" if keeps_piece(round_, run_round) else f"its round {round_} is far from the run's"


def first_is_outdated(run_round: int) -> bool:
    """Return whether the first state is too old to join with in this round."""
    return run_round > FIRST_ROUNDS


def first_state_refusal(run_round: int) -> str:
    """Return why the first state must not be used to join, for people to read; empty: it may."""
    if not first_is_outdated(run_round):
        return ""
    return f"this node has only the first state, and the run has come to round {run_round}: wait for a peer that trains"


def kept_state_refusal(kept: int, run_round: int, alone_s: float) -> str:
    """Return why the kept state of round `kept` must not be used to join, for people to read; empty: it may. `alone_s`:
    seconds since a training peer was last seen."""
    if run_round - kept <= KEPT_ROUNDS or alone_s > ALONE_S:
        return ""
    return f"this node has kept round {kept}, and the run has come to round {run_round}: wait for a peer"


def discard_reason(loss: float, kept: float | None, kept_round: int) -> str:
    """Return why a state with this loss is not kept, for people to read; empty: it is.

    `kept`: loss of the state kept now; None: not known. `kept_round`: its round."""
    if not math.isfinite(loss):
        return f"its loss is {loss}"
    if kept is None or kept_round <= COMPARED_ROUNDS or loss <= kept + WORSE_BY:
        return ""
    worse = f"{loss - kept:.4f} worse than that of the kept state; at most {WORSE_BY} is taken"
    return f"its loss is {loss:.4f} nats a token, {worse}"


def keep_again_s(*, good: bool, every_s: float, took_s: float) -> float:
    """Return the seconds from the start of a fetch to the start of the next one. `took_s`: duration of the fetch, as if
    its states had come one after another."""
    return max(every_s if good else min(KEEP_AGAIN_S, every_s), took_s / FETCH_SHARE)


def last_wait_s(parameters: int) -> float:
    """Return for how many seconds after the end of the run to wait for the last state of a model of this size."""
    return LAST_S + 4 * parameters / LAST_RATE
