"""Calls to other peers, in four parts: a user takes the part that it needs.

Every call says Hello first when it has to, is bounded by its timeout, and raises only `PartnerLost`, `PartnerRefused`
or `BadPayload`. `peer.transport.grpc_transport` makes the calls over gRPC, `peer.lab.sim.memory_transport` over a
network in memory. One conformance suite holds for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from peer.ports.directory import Shown
from peer.protocol.group.quorum import Base
from peer.protocol.group.roster import Join, JoinReply
from peer.protocol.group.shards import ContributionHeader, Receipt, ResultSink
from peer.protocol.messages import (
    Answer,
    Offer,
    PeerId,
    PeerRecord,
    PeerTimings,
    Probed,
    RoundKey,
    StateIndex,
    SwapReport,
    Vouched,
    Welcome,
)
from peer.protocol.pair.receipt import ShownReceipt, SignedOpinion
from peer.protocol.wire.payload import Arrived, Sink, Source, ignore_arrival


class SwapCalls(Protocol):
    """Calls between the partners of a pair."""

    async def offer(self, to: PeerRecord, offer: Offer, timeout_s: float) -> Answer: ...

    async def swap(
        self,
        partner: PeerRecord,
        key: RoundKey,
        source: Source,
        sink: Sink,
        timeout_s: float,
        dial: bool,
        told: PeerTimings | None = None,
        needs: float = 0.0,
    ) -> SwapReport:
        """Exchange payloads with a locked partner; both sides call this, one of them with `dial`: see
        `peer.protocol.pair.scores.initiates`. `needs`: bytes per second each way, without which it would be too slow.
        Where no relay on the way has room for that, it raises RelayBusy. Returns when `sink` holds the partner's
        complete verified payload, whatever became of ours. Raises when it does not: `sink` is then to be thrown away.
        Neither source nor sink is touched after that: what they lie in is used again. `told`: what the partner is told
        of us; the report holds what it told."""

    def relay_gone(self, partner: PeerId, within_s: float) -> PeerId | None:
        """The relay that was gone in the middle of a transfer with a partner, in so many last seconds. None: none."""

    async def receipt(self, partner: PeerRecord, signed: SignedOpinion, timeout_s: float) -> SignedOpinion | None:
        """Give the partner of a swap our signature for its own. None: it has not decided yet, or knows no such swap."""

    async def shown_receipts(self, by: PeerRecord, timeout_s: float) -> list[ShownReceipt]:
        """Ask which receipts others signed for a peer; at most `MAX_SHOWN`, unchecked."""


class GroupCalls(Protocol):
    """Calls among the members of a group."""

    async def join_round(self, leader: PeerRecord, join: Join, timeout_s: float) -> JoinReply:
        """Ask a peer to lead a round, or who does. It may hold the call for `join.wait_s`."""

    async def contribute(
        self, owner: PeerRecord, opening: ContributionHeader, source: Source | None, sink: ResultSink, timeout_s: float
    ) -> Receipt:
        """Send our part of a shard to its owner (`source` None: nothing is sent) and wait for the result: returns when
        `sink` holds it, complete and verified. Raises when it does not: `sink` is then to be thrown away. An owner that
        falls silent is noticed within five seconds; where both sides go on over another connection it is lost after
        ten more. Nothing is read of `source` once the result has begun."""

    async def held(self, by: PeerRecord, fragment: int, timeout_s: float) -> Base:
        """Which state of a fragment a peer has now."""

    async def fetch_part(self, donor: PeerRecord, snapshot: str, part: int, nbytes: int, timeout_s: float) -> bytes:
        """A part of a fragment's state (`peer.state.transfer.fragment`), of just this length; its digest is the
        caller's to check, over all parts."""


class StateCalls(Protocol):
    """Calls of a joiner to those that give it the run: manifest, state and artifacts."""

    async def fetch_manifest(self, to: PeerRecord, timeout_s: float) -> tuple[bytes, bytes]:
        """The manifest's exact bytes and their signature, unchecked."""

    async def describe_state(
        self, donor: PeerRecord, timeout_s: float, fresh: bool = False, wanted: str = ""
    ) -> StateIndex:
        """The snapshot that a donor offers. `fresh`: of its state as it is now, not the one it offered before.
        `wanted`: this one, if it still keeps it."""

    def answered_at(self, peer: PeerId) -> str:
        """The address, `host:port`, at which a peer answered us with its key; empty: it does not now."""

    async def fetch_piece(
        self, donor: PeerRecord, index: StateIndex, piece: int, timeout_s: float, arrived: Arrived = ignore_arrival
    ) -> bytes:
        """One piece, its digest verified. `arrived` is told its bytes while they come, unverified."""

    async def query_artifacts(self, holder: PeerRecord, digests: Sequence[bytes], timeout_s: float) -> list[bool]:
        """Ask which of at most `MAX_ARTIFACTS` artifacts a peer would give; one answer each, in that order. A peer of
        an older version holds none."""

    async def fetch_artifact(
        self,
        donor: PeerRecord,
        digest: bytes,
        piece: int,
        nbytes: int,
        timeout_s: float,
        arrived: Arrived = ignore_arrival,
    ) -> bytes:
        """Fetch a piece of an artifact, of exactly this length. Its caller checks the digest, over all pieces.
        `arrived` as in `fetch_piece`."""


class SwarmCalls(Protocol):
    """Calls between peers that need not exchange anything: who is there, who can be reached, what the operator said."""

    async def forget_connections(self) -> None:
        """After a sleep: the next call to each peer connects anew."""

    async def hello(self, to: PeerRecord, timeout_s: float) -> Welcome: ...

    async def probe(self, by: PeerRecord, endpoints: tuple[str, ...], timeout_s: float) -> Probed:
        """Ask a peer to dial us where it sees us calling from, at the ports of these endpoints.

        The question goes over a connection of its own, to one of the endpoints in `by`."""

    def take_callers(self) -> tuple[str, ...]:
        """The hosts, a few, that peers with a proven key called from since this was last asked."""

    async def vouch(self, by: PeerRecord, about: PeerId, timeout_s: float) -> Vouched:
        """Ask a peer whether it reaches another one, which does not answer us."""

    async def send_summary(self, to: PeerRecord, raw: bytes, timeout_s: float) -> str:
        """Give a node of the run our signed summary. Return why it was dropped; empty: it was taken. `UNWANTED`
        (`peer.ports.handler`): it takes none, or is of an older version. Raises PartnerRefused (`record`) for one that
        our key did not sign."""

    async def fetch_amendments(
        self, to: PeerRecord, held: int, head: bytes, timeout_s: float
    ) -> list[tuple[bytes, bytes]]:
        """(raw, signature) of the operator's amendments behind the `held` we have, unchecked."""

    async def fetch_papers(self, to: PeerRecord, held: Sequence[bytes], timeout_s: float) -> list[bytes]:
        """The papers of the run that we lack, as lines, unchecked. `held`: the digests of those that we have."""

    async def fetch_peers(self, to: PeerRecord, own: Shown, timeout_s: float) -> list[Shown]:
        """Show a peer our own record (empty: we have none), and get those that it knows, unchecked."""


class Transport(SwapCalls, GroupCalls, StateCalls, SwarmCalls, Protocol):
    """All calls, for those that hand the parts on."""
