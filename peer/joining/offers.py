"""What donors offer, and which of their offers go together.

What one donor says decides nothing: the donors vote, one vote for each address block, and those of proven peers count
first (`peer.protocol.swarm.block_votes`). Peers that train are preferred to a node with a first or kept state. What the
operator's node signed outranks the votes."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from peer.protocol.endpoints import block_of
from peer.protocol.messages import NODES, PeerId, PeerRecord, StateIndex
from peer.protocol.swarm.block_votes import BlockVotes, in_turn
from peer.run.statements.kinds import DigestDocument
from peer.state.snapshot import MARK, mark_of

OLD_ROUNDS = 20
"""Pair runs: pieces of states so many rounds apart are still mixed."""
NETWORKS = 3
"""Networks whose donors are heard before one of them is believed, where there are as many."""


@dataclass(frozen=True, slots=True)
class SnapshotOffer:
    """A snapshot that a donor would give."""

    donor: PeerRecord
    index: StateIndex
    block: str = ""
    """The address block in which the donor answered; empty: not known."""

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

    def add(self, others: Offers) -> None:
        """Take what further donors said."""
        self.offered += others.offered
        self.why_not |= others.why_not
        if others.eta_s:
            self.busy_for(others.eta_s)

    def bound(self, most: int | None) -> None:
        """Leave out those that name a round beyond `most`; None: any may be."""
        for one in [one for one in self.offered if most is not None and one.index.round > most]:
            self.offered.remove(one)
            self.why_not[one.donor.peer_id] = f"names round {one.index.round}, and the run is in round {most} at most"

    def ensure_first(self, digests: Sequence[DigestDocument]) -> None:
        """Leave out those of round 0 that are not the signed first state. Without a digest of it any may be."""
        signed = {one.digest[:MARK] for one in digests if one.round == 0}
        for one in [one for one in self.offered if signed and one.index.round == 0 and one.mark not in signed]:
            self.offered.remove(one)
            self.why_not[one.donor.peer_id] = "names round 0, and gives another state than the operator signed"

    def problem(self) -> str:
        """One line for a person."""
        some = [f"{peer}: {why}" for peer, why in self.why_not.items()]
        return "; ".join(some[:3]) or "no peer with a complete state is in the directory yet"


def named_block(record: PeerRecord) -> str:
    """Return the block of the first address that a record names; empty: it names none. Anybody may write anything
    there, so this decides only who is asked."""
    return block_of(record.endpoints[0]) if record.endpoints else ""


def compatible_offers(
    offered: Sequence[SnapshotOffer],
    *,
    momentum: bool,
    wanted: str = "",
    proven: Container[PeerId] = frozenset(),
    digests: Sequence[DigestDocument] = (),
) -> list[SnapshotOffer]:
    """Return those whose pieces may be mixed, donors of different blocks first. `proven`: peers proven to us.

    In groups these have the state `wanted`, if anybody still has it. Else, where peers name different states, the
    newest that was signed (`digests`): one of them may lie, and a member that begins a little behind catches up. Else
    the state that weighs most. In pairs their rounds lie within the `OLD_ROUNDS` rounds that weigh most. Of two that
    weigh the same the later is taken."""
    if not offered:
        return []
    peers = offers_of_peers(offered)
    votes = _votes(peers, proven)
    if momentum:
        by_mark: dict[str, list[SnapshotOffer]] = {}
        for one in offered:
            by_mark.setdefault(one.mark, []).append(one)
        chosen = {one.mark for one in peers}
        signed = [one.digest[:MARK] for one in digests] if len(chosen) > 1 else []
        for mark in [wanted, *signed]:
            if mark in by_mark:
                return _in_turn(by_mark[mark], proven)
        mark = max(
            sorted(chosen),
            key=lambda mark: (_weight(by_mark[mark], peers, votes), max(one.index.round for one in by_mark[mark])),
        )
        return _in_turn(by_mark[mark], proven)

    def near(newest: int) -> list[SnapshotOffer]:
        return [one for one in peers if newest - OLD_ROUNDS <= one.index.round <= newest]

    rounds = {one.index.round for one in peers}
    return _in_turn(near(max(rounds, key=lambda newest: (_weight(near(newest), peers, votes), newest))), proven)


def offers_of_peers(offered: Sequence[SnapshotOffer]) -> list[SnapshotOffer]:
    """Return those of peers; those of nodes if there is no other."""
    return [one for one in offered if one.donor.status not in NODES] or list(offered)


def _votes(offered: Sequence[SnapshotOffer], proven: Container[PeerId] = frozenset()) -> BlockVotes:
    return BlockVotes({one.donor.peer_id: one.block for one in offered}, proven)


def _weight(some: Sequence[SnapshotOffer], peers: Sequence[SnapshotOffer], votes: BlockVotes) -> tuple[int, ...]:
    """Return what these weigh. Nodes with the same state have no vote beside peers."""
    voting = {one.donor.peer_id for one in peers}
    return votes.weigh(one.donor.peer_id for one in some if one.donor.peer_id in voting)


def _in_turn(some: Sequence[SnapshotOffer], proven: Container[PeerId]) -> list[SnapshotOffer]:
    """Return the proven first, and of either kind one of each block at a time."""
    first = sorted(some, key=lambda one: one.donor.peer_id not in proven)
    return in_turn(first, lambda one: one.block)
